"""`snakemake --config`: a name or value that the engine does not know is refused before anything is planned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qgcam_lib.errors import ParameterError
from qgcam_lib.report.claims import why_not_runnable
from qgcam_lib.runs.config import EngineConfig, check_config
from qgcam_lib.runs.parameters import read_parameters
from qgcam_lib.settings import ROOT

SPLITS = ("test", "testA", "testB", "triplets", "subjects", "objects")


@pytest.fixture(scope="module")
def notebooks():
    names = ("q_groundcam", "q_groundcam_table1", "ref_adv_audit", "ref_adv_evaluate")
    return {name: read_parameters(ROOT / "nbs" / "papers" / f"{name}.ipynb") for name in names}


def check(config, notebooks):
    return check_config(config, notebooks, splits=SPLITS, gathers={"q_groundcam_table1": "q_groundcam"},
                        why_not=why_not_runnable)


@pytest.mark.parametrize("config, said", [
    ({"weigts": "official"}, "weigts"), ({"models": "blip-bas"}, "models"), ({"models": "siglip-b16"}, "siglip-b16"),
    ({"models": ""}, "models"), ({"models": "blip2-itm"}, "blip2-itm"), ({"models": "maps:no_such.npz"}, "no_such"),
    ({"splits": "tset"}, "tset"), ({"data": "/nosuch"}, "data"), ({"limit": "many"}, "limit"),
    ({"only": "q_groundcm"}, "q_groundcm"), ({"parameters": "limit: 5"}, "parameters"),
    ({"parameters": {"limmit": 5}}, "limmit"), ({"parameters": {"seed": "one"}}, "seed"),
    ({"parameters": {"models": ["reclp"]}, "only": "ref_adv_evaluate"}, "models"),
    ({"parameters": {"candidates": "all"}, "only": "q_groundcam"}, "candidates"),
])
def test_a_wrong_name_or_value_is_refused(notebooks, config, said):
    with pytest.raises(ParameterError, match=f"^--config.*{said}"):
        check(config, notebooks)


def test_what_is_right_comes_back_in_its_type(notebooks, tmp_path, monkeypatch):
    assert check({}, notebooks) == EngineConfig() and check({"data": "", "vocab": ""}, notebooks).given == {"vocab": ""}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    (tmp_path / "heat.npz").touch()
    told = check({"data": "sets", "models": "blip-base,maps:heat.npz,mine.own:make", "splits": "test, testA",
                  "limit": "7", "device": "cuda:1", "threads": 2, "parameters": {"seed": 3}, "only": "q_groundcam"},
                 notebooks)
    assert told == EngineConfig(str(tmp_path / "sets"), ["blip-base", "maps:heat.npz", "mine.own:make"],
                                ["test", "testA"], "q_groundcam", {"device": "cuda:1", "limit": 7, "seed": 3}, 2)
    assert check({"models": "blip2-itm", "weights": "random"}, notebooks).models == ["blip2-itm"]
    told = check({"parameters": {"models": ["reclip"]}, "only": "ref_adv_evaluate"}, notebooks)
    assert told.given == {"models": ["reclip"]}


def test_a_dry_run_refuses_too(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QGCAM_OUTPUTS": str(tmp_path),
                                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-m", "snakemake", "-n", "--nolock", "--config",
                           "weigts=official"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    shown = done.stdout + done.stderr
    assert done.returncode != 0 and "weigts" in shown and "Job stats" not in shown
