"""The strict runner: what it refuses, what it isolates, and what is left after a kill, a failure or a lost kernel.

Each kernel costs a second or two, so a test that starts one asks it several questions.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from speeds import some

from qgcam_lib.errors import ParameterError, RunError
from qgcam_lib.runs import find_runs, open_run, read_run
from qgcam_lib.runs import runner as runs
from qgcam_lib.runs.current import Run, lock_run
from qgcam_lib.runs.inputs import reached_code
from qgcam_lib.runs.parameters import coerce
from qgcam_lib.runs.record import update_run
from qgcam_lib.runs.runner import notebook_sha256, plan_run, run_notebook
from qgcam_lib.storage import closure, fingerprints
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).resolve().parents[1]
START = "from qgcam_lib.runs import open_run\nrun = open_run('n', globals())"


def write_notebook(path, *sources, parameters="limit: int = 3", tags=("parameters",)):
    cells = [new_code_cell(parameters, metadata={"tags": list(tags)}), *map(new_code_cell, sources)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.fixture(autouse=True)
def outside_a_run(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))


# ---- what is refused, before anything starts -------------------------------------------------------------------

@pytest.mark.parametrize("source", ["half = limit // 2", 'limit: int = "500"', "limit: int = 3\nlimit: int = 4",
                                    "limit: int", "%time limit = 3", "limit: np.ndarray = 3"])
def test_a_doubtful_parameters_cell_is_refused(source, tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", parameters=source)
    with pytest.raises(ParameterError):
        run_notebook(path, outputs=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_notebook_with_one_parameters_cell(tmp_path):
    with pytest.raises(FileNotFoundError):
        run_notebook(tmp_path / "none.ipynb")
    (tmp_path / "bad.ipynb").write_text("[1]")
    cells = [new_code_cell("limit: int = 3", metadata={"tags": ["parameters"]}) for _ in range(2)]
    nbformat.write(new_notebook(), tmp_path / "no.ipynb")
    nbformat.write(new_notebook(cells=cells), tmp_path / "two.ipynb")
    for name in ("bad", "no", "two"):
        with pytest.raises(ParameterError):
            run_notebook(tmp_path / f"{name}.ipynb")


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="`limti`"):
        plan_run(write_notebook(tmp_path / "n.ipynb"), {"limti": 3})


FITS = [
    ("int", np.int64(5), 5), ("float", "1e-3", 1e-3), ("float", 2, 2.0), ("bool", "TRUE", True), ("str", "5", "5"),
    ("str", "", ""), ("str", Path("a") / "b", "a/b"), ("list[int]", "1,2", [1, 2]), ("list[str]", "[\"a,b\"]", ["a,b"]),
    ("list", np.arange(2), [0, 1]), ("tuple[int, ...]", "3,4,5", [3, 4, 5]), ("Optional[int]", "None", None),
    ("int | str", "many", "many"), ("Literal['a', 2]", "2", 2), ("list[int | None] | None", "1,none", [1, None]),
    ("dict[str, float]", '{"a": 1}', {"a": 1.0}), ("Any", "x", "x"),
]
MISFITS = [
    ("int", 5.0), ("int", True), ("int", None), ("float", "x"), ("bool", 1), ("str", 5), ("list[int]", "1,x"),
    ("tuple[int, int]", "1"), ("int | None", "x"), ("Literal[1]", True), ("dict", "[1]"), ("list", "[1"),
]


@pytest.mark.parametrize("annotation, given, expected", FITS, ids=str)
def test_values_that_fit_their_annotation(annotation, given, expected):
    from qgcam_lib.runs.parameters import Parameter

    found = coerce(Parameter("p", annotation, None), given)
    assert found == expected and type(found) is type(expected)
    json.dumps(found)


@pytest.mark.parametrize("annotation, given", MISFITS, ids=str)
def test_values_that_do_not_fit_are_named(annotation, given):
    from qgcam_lib.runs.parameters import Parameter

    with pytest.raises(ParameterError, match="`p`"):
        coerce(Parameter("p", annotation, None), given)


# ---- the run's id ----------------------------------------------------------------------------------------------


def test_the_id_depends_on_everything_that_decides_the_result(tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "n.ipynb", "1", parameters='limit: int = 3\nroot: str = ""\nweights: str = "mini"')
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"one")
    (tmp_path / "w.bin").write_bytes(b"one")

    def run_id(**parameters):
        return plan_run(path, parameters).run_id

    base = run_id()
    assert base == run_id(limit="3") == run_id(weights="mini")
    seen = {base, run_id(limit=4), run_id(root="photos"), run_id(weights="w.bin"), run_id(weights="random")}
    assert len(seen) == 5
    plan = plan_run(path, {"root": "photos", "weights": "w.bin"})
    assert [item["path"] for item in plan.inputs["data"]] == ["photos", "w.bin"]
    assert plan.inputs["data"][1]["sha256"] == fingerprints.file_sha256(tmp_path / "w.bin")

    (tmp_path / "photos" / "a.jpg").write_bytes(b"two")
    seen |= {run_id(root="photos")}
    monkeypatch.setenv("QGCAM_SEED", "1")
    seen |= {run_id()}
    monkeypatch.setenv("QGCAM_PRECISION", "bfloat16")
    seen |= {run_id()}
    monkeypatch.setattr(runs, "reached_code", lambda *given: "edited")
    seen |= {run_id()}
    write_notebook(path, "2", parameters='limit: int = 3\nroot: str = ""\nweights: str = "mini"')
    seen |= {run_id()}
    assert len(seen) == 10


def test_an_id_sees_the_code_that_the_notebook_reaches_and_no_other(tmp_path):
    for name in ("qgcam_lib", "nbs/papers", "data/published", "data/words", "data/checks", "data/zoo"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("settings.ini", "data/sources.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    names = ["tricd_audit", "ref_adv_audit", "q_groundcam", "q_groundcam_audit"]
    code = ("import sys; from qgcam_lib.runs.runner import plan_run;"
            f"print(*(plan_run(f'nbs/papers/{{name}}.ipynb').run_id for name in {names}))")

    def edit(file, old, new):
        path = tmp_path / "qgcam_lib" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def ids(*edited):
        if edited:
            edit(*edited)
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "QGCAM_DATA_ROOT": str(ROOT / "data")}
        found = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True,
                                        timeout=300)
        return dict(zip(names, found.split()))

    before = ids()
    edit("runs/inputs.py", '"""', '"""In other words: ')
    edit("storage/files.py", "import ", "# a comment\n\nimport ")
    edit("models/mdetr/detector.py", "return ", "return 1 and ")
    assert ids() == before, "a docstring and a comment are no code, and no notebook names MDETR"
    words = ids("miniworld/scenes/sampler.py", "return ", "return 1 and ")
    assert words["tricd_audit"] == before["tricd_audit"], "the audit draws no scenes"
    assert words["q_groundcam"] != before["q_groundcam"], "its data set is drawn"
    formula = ids("metrics/formulas.py", "return ", "return 2 * ")
    assert all(formula[name] != words[name] for name in ("q_groundcam", "q_groundcam_audit"))
    assert formula["ref_adv_audit"] == words["ref_adv_audit"]
    blip = ids("models/blip/explainer.py", "return ", "return 1 and ")
    assert blip["q_groundcam"] != formula["q_groundcam"] and blip["tricd_audit"] == formula["tricd_audit"]
    assert ids("metrics/batched.py", "return ", "return 2 * ")["q_groundcam"] != blip["q_groundcam"]


def test_imports_are_found_wherever_they_stand_and_what_only_a_type_checker_reads_is_not():
    source = """
import house.a
if TYPE_CHECKING: import house.never
else: import house.b
if typing.TYPE_CHECKING:
    from house.never import x
try:
    from house import c
except ImportError:
    from . import d
else:
    from .. import e
finally:
    from ..f import x
async def one():
    async with two():
        match three:
            case 4:
                for five in six:
                    while True:
                        import house.g as seven
NINE = "a text such as house.never"
"""
    found = closure.named_modules(source, "house.room")
    assert {"house.a", "house.b", "house.c", "house.room.d", "house.e", "house.f", "house.g"} <= found
    assert not any("never" in name for name in found)


@pytest.mark.nightly
def test_the_closure_holds_every_module_that_is_imported():
    """What each paper notebook imports, and what every loader of the registry does, is among the files that count."""
    code = """if True:
        import ast, importlib, json, sys
        from qgcam_lib.models.inputs import loader_modules
        from qgcam_lib.storage.closure import code_files
        from pathlib import Path
        def loaded():
            return {Path(module.__file__) for name, module in sys.modules.items() if name.split(".")[0] == "qgcam_lib"}
        for notebook in sorted(Path("nbs/papers").glob("*.ipynb"), key=lambda path: path.stem != "tricd_audit"):
            cells = json.loads(notebook.read_text())["cells"]
            source = "\\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
            before = loaded()
            lines = [ast.unparse(node) for node in ast.walk(ast.parse(source))
                     if isinstance(node, ast.Import | ast.ImportFrom)]
            exec("\\n".join(line for line in lines if line.split()[1].startswith("qgcam_lib")), {})
            assert loaded() - before <= set(code_files(source=source)), notebook
        from qgcam_lib.models.registry import MODELS
        for entry in MODELS.values():
            before, known = loaded(), set(code_files(*loader_modules(entry.name)))
            importlib.import_module(entry.loader.split(":")[0])
            assert loaded() - before <= known, entry.name
        from qgcam_lib.models import load_model
        for name in ("blip-base-as-answerer", "reclip", "itm-crops", "map-mass", "detector-boxes", "vilbert"):
            before, known = loaded(), set(code_files(*loader_modules(name)))
            load_model(name)
            assert loaded() - before <= known, name"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300,
                   env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_outputs_of_a_notebook_are_not_its_source(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "1 + 1")
    before = notebook_sha256(path)
    node = nbformat.read(path, 4)
    node.cells[1].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "999"}, execution_count=5)]
    node.cells[1].execution_count = 5
    node.metadata["language_info"] = {"name": "python", "version": "3.0"}
    assert notebook_sha256(node) == before
    node.cells[1].source = "1 + 2"
    assert notebook_sha256(node) != before


def test_a_path_of_the_caller_is_seen_from_the_kernels_folder(tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "n.ipynb", parameters='root: str = ""\nsplit: str = "test"')
    (tmp_path / "elsewhere" / "data" / "photos").mkdir(parents=True)
    (tmp_path / "elsewhere" / "test").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plan = plan_run(path, {"root": "data/photos", "split": "test"})
    assert plan.parameters == {"root": "elsewhere/data/photos", "split": "test"}
    assert len(plan.inputs["data"]) == 1


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path, monkeypatch):
    file, cache, reads = tmp_path / "a.txt", tmp_path / "c.sqlite", []
    true_hash = fingerprints.file_sha256
    monkeypatch.setattr(fingerprints, "file_sha256", lambda path: reads.append(path) or true_hash(path))
    file.write_bytes(b"one")
    fresh = [fingerprints.fingerprint(file, cache=cache) for _ in range(2)]
    assert len(reads) == 2 and len(set(fresh)) == 1  # changed a moment ago: not remembered
    os.utime(file, ns=(10**18, 10**18))
    old = [fingerprints.fingerprint(file, cache=cache) for _ in range(2)]
    assert len(reads) == 3 and old == fresh
    file.write_bytes(b"two")
    os.utime(file, ns=(10**18, 10**18))  # same size, same time stamp
    assert fingerprints.fingerprint(file, cache=cache) != old[0]


# ---- a run that ends well --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, started with a poisoned home: IPython start-up files, PYTHONSTARTUP, a foreign kernel."""
    tmp = tmp_path_factory.mktemp("finished")
    startup = tmp / "home" / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-leak.py").write_text("leaked = 'profile'")
    (tmp / "leak.py").write_text("leaked = 'PYTHONSTARTUP'")
    kernel = tmp / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "x", "language": "python"}))
    path = write_notebook(
        tmp / "demo.ipynb", START,
        'import os, random, sys\nassert "leaked" not in globals()\n'
        'run.record(python=sys.executable, cwd=os.getcwd(), draw=random.random(), seed=run.seed, hash=hash("a"),\n'
        '           undefined=float("nan"), limit=limit)',
        'with open(run.folder / "executed.txt", "a") as file: file.write("x")',
        'import pandas as pd\nrun.save_table(pd.DataFrame({"a": [1, 2]}), "scores", "Two numbers.")',
        'run.store("scores").append(pd.DataFrame({"id": ["a"], "value": [1.0]}))',
        "run.colophon()", parameters="limit: int = 3\nseed: int = 11")
    home = {"HOME": str(tmp / "home"), "IPYTHONDIR": str(tmp / "home" / ".ipython"),
            "PYTHONSTARTUP": str(tmp / "leak.py"), "JUPYTER_PATH": str(tmp / "jupyter")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.items():
            patch.setenv(name, value)
        return path, run_notebook(path, {"limit": "4"}, outputs=tmp / "out", progress=False)


def test_the_record_says_what_made_the_result(finished):
    path, result = finished
    record = read_run(result.folder)
    assert result.status == record["status"] == "ok" and result.folder.name == result.run_id == record["run_id"]
    assert record["parameters"] == {"limit": 4, "seed": 11} and record["seed"] == 11
    assert record["notebook_sha256"] == notebook_sha256(path)
    assert record["code_sha256"] == reached_code(runs.notebook_source(path)) != record["versions"]["qgcam_lib_sha256"]
    assert record["error"] is None and record["seconds"] > 0 and record["attempts"] == 1 and record["models"] == []
    kinds = {item["path"]: item["kind"] for item in record["outputs"]}
    part = RecordStore(result.folder / "records" / "scores").parts()[0].name
    assert kinds == {"run.ipynb": "notebook", "tables/scores.csv": "table", "tables/scores.parquet": "table",
                     f"records/scores/{part}": "records"}
    for item in record["outputs"]:
        assert item["sha256"] == fingerprints.file_sha256(result.folder / item["path"])


def test_the_kernel_is_clean_seeded_and_of_this_python(finished):
    import random

    path, result = finished
    results = read_run(result.folder)["results"]
    assert results["python"] == sys.executable and Path(results["cwd"]) == path.parent.resolve()
    assert results["seed"] == 11 and results["draw"] == random.Random(11).random()
    env = dict(os.environ, PYTHONHASHSEED="11")
    known = subprocess.check_output([sys.executable, "-c", "print(hash('a'))"], env=env, text=True, timeout=300)
    assert results["hash"] == int(known)
    assert results["undefined"] is None and results["limit"] == 4


def test_the_executed_notebook_is_whole_and_names_no_machine(finished):
    path, result = finished
    node = nbformat.read(result.folder / "run.ipynb", 4)
    nbformat.validate(node)
    counts = [cell.execution_count for cell in node.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert node.metadata.papermill.exception is None and node.metadata.papermill.output_path == "run.ipynb"
    assert str(path.parent) not in json.dumps(node.metadata)
    assert "limit = 4" in node.cells[1].source and "seed = 11" in node.cells[1].source


def test_a_finished_run_is_skipped_until_a_file_is_gone(finished, monkeypatch):
    path, result = finished
    monkeypatch.setattr(runs, "_execute", lambda *a: pytest.fail("the notebook was executed"))
    outputs = result.folder.parents[1]
    again = run_notebook(path, {"limit": 4}, outputs=outputs)
    assert (again.status, again.run_id) == ("skipped", result.run_id)
    assert again.seconds == pytest.approx(result.seconds, abs=0.5)
    assert (result.folder / "executed.txt").read_text() == "x"
    assert [record["run_id"] for _, record in find_runs(outputs, "demo")] == [result.run_id]

    table = result.folder / "tables" / "scores.csv"
    text = table.read_text()
    table.unlink()
    with pytest.raises(pytest.fail.Exception, match="was executed"):
        run_notebook(path, {"limit": 4}, outputs=outputs)
    table.write_text(text)
    update_run(result.folder, status="ok", error=None)


# ---- failure ---------------------------------------------------------------------------------------------------


def test_a_failed_run_keeps_its_notebook_and_a_forced_one_puts_the_old_result_aside(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", START, "from pathlib import Path\nrun.record(before=limit)",
                          f'if Path("{tmp_path}/broken").exists(): raise OSError("disk full")', "run.record(after=1)")
    (tmp_path / "broken").touch()
    with pytest.raises(RunError, match=r"failed in cell \[5\]: OSError: disk full"):
        run_notebook(path, outputs=tmp_path / "out", progress=False)
    folder = plan_run(path, outputs=tmp_path / "out").folder
    record = read_run(folder)
    assert (record["status"], record["error"]) == ("failed", {"type": "OSError", "message": "disk full", "cell": 5})
    assert record["results"] == {"before": 3}
    error = nbformat.read(folder / "run.error.ipynb", 4)
    assert "An Exception was encountered" in error.cells[0].source and not (folder / "run.ipynb").exists()
    assert find_runs(tmp_path / "out") == [] and len(find_runs(tmp_path / "out", status="failed")) == 1

    (tmp_path / "broken").unlink()
    assert run_notebook(path, outputs=tmp_path / "out", progress=False).status == "ok"
    record = read_run(folder)
    assert (record["attempts"], record["results"], record["error"]) == (2, {"before": 3, "after": 1}, None)
    assert (folder / "run.ipynb").exists() and not (folder / "run.error.ipynb").exists()

    (tmp_path / "broken").touch()
    with pytest.raises(RunError, match="replaced"):
        run_notebook(path, outputs=tmp_path / "out", force=True, progress=False)
    aside = folder.with_name(f".{folder.name}.replaced")
    assert read_run(folder)["status"] == "failed" and read_run(aside)["status"] == "ok"


def test_a_kernel_that_dies_and_a_cell_that_takes_too_long(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "import os, time\nos._exit(9) if limit == 3 else time.sleep(600)")
    for limit, timeout, words in [(3, None, "DeadKernel"), (4, 4, "Timeout")]:
        with pytest.raises(RunError, match=words):
            run_notebook(path, {"limit": limit}, outputs=tmp_path / "out", timeout=timeout, progress=False)
        folder = plan_run(path, {"limit": limit}, outputs=tmp_path / "out").folder
        assert read_run(folder)["status"] == "failed" and (folder / "run.error.ipynb").exists()


# ---- killed ----------------------------------------------------------------------------------------------------

BATCHES, SIZE = 12, 5
LOOP = f"""import os, time, numpy as np, pandas as pd
(run.folder / "kernel.pid").write_text(str(os.getpid()))
store, ids = run.store("scores"), [f"e{{n:03d}}" for n in range({BATCHES * SIZE})]
for start in range(0, len(ids), {SIZE}):
    batch = [name for name in ids[start:start + {SIZE}] if name not in store.done()]
    if not batch: continue
    with open(run.folder / "computed.txt", "a") as file: print(*batch, file=file)
    time.sleep(pause)
    values = [np.random.default_rng(int(name[1:])).normal() for name in batch]
    store.append(pd.DataFrame({{"id": batch, "value": values}}))"""
SAVE = 'frame = store.read().sort_values("id", ignore_index=True)\nrun.save_table(frame, "scores", "All.")'


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result of the loop without any accident."""
    tmp = tmp_path_factory.mktemp("whole")
    path = write_notebook(tmp / "loop.ipynb", START, LOOP, SAVE, parameters="pause: float = 0.0")
    result = run_notebook(path, outputs=tmp / "out", progress=False)
    return pd.read_parquet(result.folder / "tables" / "scores.parquet")


@pytest.mark.parametrize("victims", some(["runner", "runner and kernel"], "runner and kernel"))
def test_a_killed_run_goes_on_and_loses_at_most_one_batch(victims, whole, tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "loop.ipynb", START, LOOP, SAVE, parameters="pause: float = 0.25")
    monkeypatch.setattr(runs, "reached_code", lambda *given: "same")  # so that an edit meanwhile does not matter
    plan = plan_run(path, outputs=tmp_path / "out")
    code = ("import sys, qgcam_lib.runs.runner as runs, qgcam_lib.cli.main as cli; "
            "runs.reached_code = lambda *given: 'same';"
            f"sys.exit(cli.main(['run', {str(path)!r}, '--quiet', '--outputs', 'out']))")
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as runner:
        deadline = time.monotonic() + 120
        while len(list((plan.folder / "records" / "scores").glob("part-*.parquet"))) < 4:
            if runner.poll() is not None or time.monotonic() > deadline:
                runner.kill()  # leaving the block waits for it
                pytest.fail("the run ended, or did not begin")
            time.sleep(0.02)
        runner.send_signal(signal.SIGKILL)
        if victims != "runner":
            os.kill(int((plan.folder / "kernel.pid").read_text()), signal.SIGKILL)
        assert runner.wait(60) == -signal.SIGKILL
    assert read_run(plan.folder)["status"] == "running"
    result = run_notebook(path, outputs=tmp_path / "out", progress=False)
    record = read_run(result.folder)
    assert (result.status, record["attempts"]) == ("ok", 2)
    frame = pd.read_parquet(result.folder / "tables" / "scores.parquet")
    pd.testing.assert_frame_equal(frame, whole)
    computed = [name for line in (result.folder / "computed.txt").read_text().splitlines() for name in line.split()]
    assert len(whole) == BATCHES * SIZE <= len(computed) <= BATCHES * SIZE + SIZE
    assert len(RecordStore(result.folder / "records" / "scores").done()) == BATCHES * SIZE


def test_a_lock_without_an_owner_is_taken_over(tmp_path):
    (tmp_path / ".abc.lock").write_text("process 1 on a-machine-that-lost-power")
    with lock_run(tmp_path / "abc", wait=0):
        assert f"process {os.getpid()}" in (tmp_path / ".abc.lock").read_text()
        with pytest.raises(RunError, match="another process"), lock_run(tmp_path / "abc", wait=0):
            pass
    assert not (tmp_path / ".abc.lock").exists()


# ---- whole or not at all ---------------------------------------------------------------------------------------


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path):
    run = Run(tmp_path / "r", "r")
    run.save_table(pd.DataFrame({"a": [1]}), "t", "old")
    before = read_run(run.folder)
    with pytest.raises(Exception, match="(?i)convert|object|type"):
        run.save_table(pd.DataFrame({"a": [1, "x", object()]}), "t", "new")
    assert read_run(run.folder) == before and (run.folder / "tables" / "t.csv").read_text() == "a\n1\n"
    assert sorted(p.name for p in (run.folder / "tables").iterdir()) == ["t.csv", "t.parquet"]


def test_names_and_types_of_outputs_are_checked(tmp_path):
    run = Run(tmp_path / "r", "r")
    for name in ("../t", ""):
        with pytest.raises(ValueError, match="name: expected letters"):
            run.save_table(pd.DataFrame({"a": [1]}), name)
    with pytest.raises(TypeError):
        run.save_table([1, 2], "t")


def test_outside_the_runner_a_run_has_a_folder_and_a_lock_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my notebook", "another"):
        write_notebook(tmp_path / f"{name}.ipynb", START)
    space = {"limit": 3}
    run = open_run("my notebook", space, outputs=tmp_path)
    assert run.folder.parent == tmp_path / "interactive" / "my_notebook" and run.folder.name == run.id
    run.record(n=1)
    with pytest.raises(RunError, match="another process"), lock_run(run.folder, wait=0.1):
        pass
    other = open_run("another.ipynb", space, outputs=tmp_path)
    with lock_run(run.folder, wait=0.1):
        pass
    assert other.folder.parent.name == "another" and read_run(run.folder)["results"] == {"n": 1}
    again = open_run(tmp_path / "my notebook.ipynb", space, outputs=tmp_path)
    assert again.folder == run.folder and read_run(run.folder)["results"] == {}
    assert find_runs(tmp_path) == [] and len(find_runs(tmp_path, status="interactive")) == 2


def test_a_run_takes_the_values_of_the_kernel_and_refuses_what_the_notebook_does_not_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "mine.ipynb", START, "scratch = 1", parameters="limit: int = 3\nshare: float = 0.5")
    (tmp_path / "mine.py").touch()

    def parameters(**space):
        return read_run(open_run("mine", space, outputs=tmp_path / "out").folder)["parameters"]

    assert parameters() == parameters(limit=3) == {"limit": 3, "share": 0.5}
    changed = parameters(more=1, limit=np.int64(7), _i3="limit = 7", share=1.0, np=np, late=5)
    assert changed == {"limit": 7, "share": 1.0}
    assert parameters(limit=3, share=0.5, scratch=1, limti=9)["limit"] == 3, "what a later cell left does not count"
    for space, name in (({"limit": True}, "`limit`"), ({"limit": 3, "share": 0.5, "zzz": None}, "`zzz`")):
        with pytest.raises(ParameterError, match=name):
            parameters(**space)
    with pytest.raises(RunError, match="name: expected the name or path"):
        open_run("nowhere/mine.ipynb", {}, outputs=tmp_path / "out")
