"""A part of Table 1 on a cluster, for real: four shards on two nodes, one node lost, the controller restarted."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest
from compendium import lay_compendium
from slurm_cluster import FILES, Cluster

ROOT = Path(__file__).resolve().parents[1]


def compendium(folder, notebook="q_groundcam"):
    """The engine with one paper notebook; zoo and miniworld are the clone's."""
    lay_compendium(folder)
    (folder / "nbs" / "papers").mkdir(parents=True)
    node = nbformat.read(ROOT / "nbs" / "papers" / f"{notebook}.ipynb", 4)
    nbformat.write(node, folder / "nbs" / "papers" / f"{notebook}.ipynb")
    for name in ("zoo", "studies"):
        (folder / "data" / name).symlink_to(ROOT / "data" / name)
    plain = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    return plain | {"PYTHONPATH": str(folder), "QGCAM_DATA_ROOT": str(ROOT / "data"), "HF_HUB_OFFLINE": "1",
                    "QGCAM_OUTPUTS": str(folder / "outputs"),
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def shards_there(folder, status):
    """How many shards have a record of this status."""
    found = folder.glob("outputs/shards/*/*/run.json")
    return sum(f'"status": "{status}"' in path.read_text() for path in found)


def test_a_job_asks_for_a_gpu_and_for_what_was_planned(tmp_path):
    environment = compendium(tmp_path)

    def resources():
        config = ("only=q_groundcam", "models=blip-base", "splits=test", "shards=2", "device=cuda")
        done = subprocess.run(["snakemake", "-n", "--config", *config], cwd=tmp_path, env=environment,
                              capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-2000:]
        text = done.stdout + done.stderr
        found = re.findall(r"runtime=(\d+), gres=gpu:1.* mem_mb=(\d+)", text)
        return sorted(found), re.search(r"run_id=([0-9a-f]{12})", text)[1]

    asked, run_id = resources()
    assert asked == [("120", "6000")] * 3  # two shards and the run
    plan = tmp_path / "outputs" / "plans" / "q_groundcam" / f"{run_id}.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps({"fixed": 60.0, "asking": 36000.0, "memory_mb": 3000}))
    assert resources()[0] == [("12", "4500"), ("612", "4500"), ("612", "4500")]
    assert not (tmp_path / ".snakemake" / "engine.json").exists()  # only looked


@pytest.mark.nightly
def test_a_lost_node_and_a_restarted_controller(capsys):
    with tempfile.TemporaryDirectory(prefix="qgcam-slurm-") as place, Cluster(Path(place)) as cluster:
        folder = Path(place) / "compendium"
        environment = compendium(folder)
        engine = subprocess.Popen(["bash", "-eu", FILES / "site.sh"], cwd=folder, env=environment | cluster.environment
                                  | {"PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            cluster.wait(lambda: shards_there(folder, "running") or engine.poll() is not None, 300)
            cluster.kill("slurmctld")
            time.sleep(2)
            cluster.start("slurmctld")
            cluster.wait(lambda: shards_there(folder, "ok") or engine.poll() is not None, 300)
            cluster.wait(lambda: "n1" in cluster.run("squeue", "-h", "-t", "R", "-o", "%N") or engine.poll(), 200)
            lost = len(cluster.jobs_of("n1"))
            cluster.kill("n1")
            said, _ = engine.communicate(timeout=900)
        finally:
            engine.kill()
        assert engine.returncode == 0, said[-4000:]
        assert lost > 1 and shards_there(folder, "ok") == 4
        gathered, = folder.glob("outputs/gathered/q_groundcam/*/*/run.json")
        record = json.loads(gathered.read_text())
        assert [len(record["shards"]), record["results"]["n"]] == [4, 160]
        given = folder / "parameters.yaml"
        given.write_text(json.dumps(record["parameters"]))
        whole = subprocess.run(["qgcam", "run", "q_groundcam", "-f", given, "--outputs", folder / "whole", "--quiet"],
                               cwd=folder, env=environment | {"QGCAM_THREADS": "1"}, capture_output=True, text=True,
                               timeout=600)
        assert whole.returncode == 0, whole.stderr[-2000:]
        right = {path.name: path.read_bytes() for path in folder.glob("whole/q_groundcam/*/tables/*.csv")}
        assert right and right == {path.name: path.read_bytes() for path in (gathered.parent / "tables").glob("*.csv")}
        with capsys.disabled():
            seconds = [round(one["seconds"]) for one in record["shards"]]
            print(f"\nshards {seconds} s, the gather {record['seconds']:.0f} s; {lost} processes of n1 killed; "
                  f"{said.count('Trying to restart')} jobs submitted again")
