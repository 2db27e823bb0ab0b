"""`snakemake --config`: a name or value that the engine does not know is refused before anything is planned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qgcam_lib.errors import ParameterError
from qgcam_lib.report.cautions import why_not_runnable
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
    ({"weigts": "official"}, "given 'weigts'. Did you mean 'weights'.*There are: data, models"),
    ({"zzz": 1}, "given 'zzz'. There are"),
    ({"models": "blip-bas"}, "`models`.*Did you mean 'blip-base'"),
    ({"models": "blip-base,siglip-b16"}, "'siglip-b16' is a matcher"),
    ({"models": "blip-base,"}, "`models`.*given 'blip-base,'"),
    ({"models": ""}, "models: expected a value"),
    ({"models": None}, "models: expected a value"),
    ({"models": []}, "models: expected at least one"),
    ({"models": "blip2-itm"}, "'blip2-itm' cannot run here: it has no mini weights"),
    ({"models": 3}, "`models`.*given 3"),
    ({"models": "maps:no_such_file.npz"}, "cannot run here: no such file"),
    ({"splits": "tset"}, "given 'tset'. Did you mean 'test'"),
    ({"splits": ""}, "splits: expected a value"),
    ({"data": "/nosuch"}, "data: expected a folder.*given '/nosuch'"),
    ({"data": 3}, "`data`.*expected str"),
    ({"vocab": "/nosuch/vocab.txt"}, "vocab: expected an existing file"),
    ({"weights": "offical"}, "weights: .*did you mean 'official'"),
    ({"weights": "/nosuch.pth"}, "weights: .*existing path"),
    ({"device": "gpu"}, "device: expected cpu, cuda, cuda:N or mps"),
    ({"limit": "many"}, "`limit`.*expected int, given 'many'"),
    ({"limit": 2.5}, "`limit`.*expected int"),
    ({"limit": True}, "`limit`.*expected int"),
    ({"limit": -1}, "limit: expected 0 or more"),
    ({"threads": 0}, "threads: expected 1 or more"),
    ({"threads": "two"}, "`threads`.*expected int"),
    ({"only": "q_groundcm"}, "'q_groundcm'. Did you mean 'q_groundcam'"),
    ({"parameters": "limit: 5"}, "`parameters`.*expected dict"),
    ({"parameters": {"limmit": 5}}, "no notebook has a parameter of this name, given 'limmit'. Did you mean 'limit'"),
    ({"parameters": {"seed": "one"}}, "q_groundcam: parameter `seed`.*expected int"),
    ({"parameters": {"lengths": ["long"]}}, "ref_adv_audit: parameter `lengths`.*expected list"),
    ({"parameters": {"models": ["reclp"]}, "only": "ref_adv_evaluate"}, "ref_adv_evaluate.*Did you mean 'reclip'"),
    ({"parameters": {"candidates": "all"}, "only": "q_groundcam"}, "no notebook that is asked for has"),
])  # fmt: skip
def test_a_wrong_name_or_value_is_refused_with_what_there_is(notebooks, config, said):
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


@pytest.mark.parametrize("given, said", [
    (["weigts=official"], "Did you mean 'weights'"),
    pytest.param(["models=blip-bas"], "Did you mean 'blip-base'", marks=pytest.mark.nightly),
    pytest.param(["data=/nosuch"], "expected a folder", marks=pytest.mark.nightly)])
def test_a_dry_run_refuses_too(given, said, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QGCAM_OUTPUTS": str(tmp_path),
                                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-m", "snakemake", "-n", "--nolock", "--config", *given], cwd=ROOT,
                          env=environment, capture_output=True, text=True, timeout=300)
    shown = done.stdout + done.stderr
    assert done.returncode != 0 and said in shown and "Job stats" not in shown
