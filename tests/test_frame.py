"""The frame: lock, conda file, settings, Makefile, floors, and what must not stand in a tracked file."""

import ast
import configparser
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def locked():
    """The lock as a list of (requirement, its hashes)."""
    lines = [line for line in read("requirements.lock").splitlines() if not line.startswith("#")]
    blocks = re.split(r"\n(?=\S)", "\n".join(lines))
    return [(Requirement(block.split("\\")[0].strip()), re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
            for block in blocks if block.strip()]


def applying(python):
    """name -> version of the packages that the lock gives to Linux and this Python version."""
    where = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux",
             "os_name": "posix", "platform_system": "Linux", "platform_machine": "x86_64",
             "implementation_name": "cpython"}
    found = [(r.name, str(r.specifier)) for r, _ in locked() if r.marker is None or r.marker.evaluate(where)]
    assert len(found) == len(dict(found)), "a package is locked twice for one Python version"
    return {name: version.removeprefix("==") for name, version in found}


# --- the lock --------------------------------------------------------------------------------------------------------

def test_lock_pins_and_hashes_everything():
    for requirement, hashes in locked():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
        assert requirement.url is None and hashes, requirement


def test_lock_names_no_index():
    lines = [line for line in read("requirements.lock").splitlines() if not line.startswith("#")]
    assert not [line for line in lines if re.search(r"https?://|file:|-i |index-url|find-links|trusted", line)]
    head = [line for line in read("requirements.lock").splitlines() if line.startswith("#")]
    assert head and not [line for line in head if "://" in line or re.search(r" /\w", line)]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_lock_covers_what_is_asked_for(python):
    have = applying(python)
    for line in read("requirements.in").splitlines():
        if line.strip() and not line.startswith("#"):
            asked = Requirement(line)
            name = asked.name.lower().replace("_", "-")
            assert name in have, f"{asked} is missing for Python {python}"
            assert asked.specifier.contains(have[name], prereleases=True), f"{asked}, locked {have[name]}"


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_lock_keeps_the_decided_versions_and_one_cv2(python):
    have = applying(python)
    decided = {"torch": "2.11.0", "torchvision": "0.26.0", "transformers": "4.53.3", "salesforce-lavis": "1.0.2",
               "nbdev": "3.3.26", "papermill": "2.7.0"}
    assert {name: have[name] for name in decided} == decided
    assert "opencv-python-headless" in have and "opencv-python" not in have  # the other one needs the system's libGL


def test_the_running_environment_is_the_locked_one():
    from importlib.metadata import PackageNotFoundError, version

    have = applying(f"3.{sys.version_info.minor}")
    for name in ("torch", "numpy", "pandas", "nbdev", "papermill", "transformers", "snakemake", "pytest"):
        try:
            assert version(name) == have[name], f"{name}: run `make env`"
        except PackageNotFoundError:
            pytest.fail(f"{name} is not installed: run `make env`")


def test_conda_file_pins_are_the_lock():
    conda = yaml.safe_load(read("environment.yml"))
    python = next(item for item in conda["dependencies"] if isinstance(item, str) and item.startswith("python="))
    assert python == "python=3.11"
    pins = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    assert dict(pin.split("==") for pin in pins) == applying("3.11")
    assert len(pins) == len({pin.split("==")[0] for pin in pins})


def test_conda_file_is_the_generated_one():
    made = subprocess.run([sys.executable, ".ci/environment.py", "requirements.lock"], cwd=ROOT, capture_output=True,
                          text=True, check=True, timeout=300)
    assert made.stdout == read("environment.yml"), "run: python .ci/environment.py requirements.lock > environment.yml"


# --- settings --------------------------------------------------------------------------------------------------------

@pytest.fixture
def ini(tmp_path):
    def write(*lines, head="[qgcam]"):
        path = tmp_path / "settings.ini"
        path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
        return path
    return write


def test_settings_precedence(ini):
    from qgcam_lib.settings import load_settings

    path = ini("seed = 4", "batch_size = 4", "threads = 4")
    got = load_settings(path, environ={"QGCAM_SEED": "5", "QGCAM_BATCH_SIZE": "5"}, seed=6)
    assert (got.seed, got.batch_size, got.threads, got.device) == (6, 5, 4, "cpu")


def test_settings_shipped_values_are_the_defaults_and_documented():
    from qgcam_lib.settings import ROOT as FOUND
    from qgcam_lib.settings import Settings, load_settings

    assert FOUND == ROOT
    assert load_settings(environ={}) == Settings()
    lines = read("settings.ini").splitlines()
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string("\n".join(lines))
    assert set(parser["qgcam"]) == set(Settings.model_fields)
    for key in Settings.model_fields:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} ="))
        assert lines[at - 1].startswith("# "), f"{key} has no comment above it"


@pytest.mark.parametrize(("source", "expected"), [
    ("file", r"settings\.ini: unknown setting batchsize\. Did you mean batch_size\? Known settings: data_root, .*seed"),
    ("environment", r"environment: unknown setting QGCAM_BATCHSIZE\. Did you mean QGCAM_BATCH_SIZE\? Known .*_SEED"),
    ("keyword", r"keyword: unknown setting batchsize\. Did you mean batch_size\?"),
])
def test_settings_unknown_key(ini, source, expected):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    path = ini("batchsize = 4" if source == "file" else "seed = 1")
    environ = {"QGCAM_BATCHSIZE": "4"} if source == "environment" else {}
    with pytest.raises(SettingsError, match=expected):
        load_settings(path, environ=environ, **({"batchsize": 4} if source == "keyword" else {}))


@pytest.mark.parametrize(("key", "value"), [
    ("batch_size", "many"), ("batch_size", "0"), ("batch_size", "1.5"), ("seed", "-1"), ("seed", str(2**32)),
    ("device", "gpu"), ("device", "cuda:x"), ("precision", "double"), ("threads", "-2"), ("data_root", ""),
    ("outputs", " "),
])
@pytest.mark.parametrize("source", ["file", "environment", "keyword"])
def test_settings_wrong_type(ini, key, value, source):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    path = ini(f"{key} = {value}" if source == "file" else "")
    environ = {f"QGCAM_{key.upper()}": value} if source == "environment" else {}
    place = {"file": "settings.ini", "environment": "environment", "keyword": "keyword"}[source]
    with pytest.raises(SettingsError, match=f"{re.escape(place)}: setting {key}: .*Default: "):
        load_settings(path, environ=environ, **({key: value} if source == "keyword" else {}))


def test_settings_truth_value_is_no_number(ini):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    with pytest.raises(SettingsError, match="setting batch_size"):
        load_settings(ini(""), environ={}, batch_size=True)


@pytest.mark.parametrize(("head", "line"), [
    ("[other]", "seed = 1"), ("[qgcam]", "seed = 1\nseed = 2"), ("[qgcam]", "seed"), ("", "seed = 1"),
    ("[DEFAULT]", "seed = 1"),
])
def test_settings_broken_file(ini, head, line):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    with pytest.raises(SettingsError, match=r"settings\.ini"):
        load_settings(ini(line, head=head), environ={})


def test_settings_runner_variables_are_left_alone(ini):
    from qgcam_lib.settings import load_settings

    assert load_settings(ini(""), environ={"QGCAM_RUN_FOLDER": "x", "QGCAM_RUN_ANYTHING": "y"}).seed == 0


def test_settings_paths(ini, monkeypatch, tmp_path):
    from qgcam_lib.settings import load_settings

    monkeypatch.chdir(tmp_path)
    got = load_settings(ini("outputs = results/../here", "cache = ~/there"), environ={"QGCAM_DATA_ROOT": str(tmp_path)})
    assert (got.outputs, got.cache, got.data_root) == (ROOT / "here", Path.home() / "there", tmp_path)


def test_settings_same_from_any_folder_and_light(tmp_path):
    code = ("import sys; from qgcam_lib.settings import ROOT, settings; "
            "heavy = [m for m in ('torch', 'pandas', 'lavis', 'transformers') if m in sys.modules]; "
            "print(ROOT, settings.outputs, heavy)")
    where = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300,
                          **where)
    assert done.stdout.split() == [str(ROOT), str(ROOT / "outputs"), "[]"]


def test_settings_table_names_each_source(ini):
    from qgcam_lib.settings import settings_table

    path = ini("threads = 2")
    rows = {row["setting"]: row for row in settings_table(path, environ={"QGCAM_SEED": "3"}, device="cuda")}
    sources = {name: rows[name]["source"] for name in ("threads", "seed", "device", "precision")}
    assert sources == {"threads": str(path), "seed": "environment", "device": "keyword", "precision": "default"}


# --- Makefile --------------------------------------------------------------------------------------------------------

FAKE_PYTHON = """#!/bin/sh
# stands for the interpreter of a virtual environment: records what pip is asked, makes the environment it is asked for
case "$*" in
  *"-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
  *) echo "$*" >> "$FAKE_LOG" ;;
esac
"""


@pytest.fixture
def house(tmp_path):
    """A folder with only what `make env` reads, an interpreter that records its calls, and a way to run make there."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    log = tmp_path / "calls.log"

    def make(*arguments, **variables):
        log.unlink(missing_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(["make", f"PYTHON={python}", "VENV=.venv", *arguments], cwd=tmp_path, capture_output=True,
                              text=True, env={**environ, "FAKE_LOG": str(log), **variables}, check=False, timeout=300)
        installs = [line for line in (log.read_text().splitlines() if log.exists() else []) if " install " in line]
        return done, installs
    make.folder = tmp_path
    return make


def test_make_installs_once_only_from_the_lock_and_again_when_it_changes(house):
    done, installs = house("env")
    assert done.returncode == 0, done.stderr
    assert len(installs) == 2
    assert "--no-deps --require-hashes -r requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation --no-index --editable ." in installs[1]
    done, installs = house("env")
    assert done.returncode == 0 and installs == [], "a second run installs something"
    with open(house.folder / "requirements.lock", "a") as lock:
        lock.write("# changed\n")
    assert any("-r requirements.lock" in line for line in house("env")[1])
    (house.folder / "pyproject.toml").write_text(read("pyproject.toml") + "\n# changed\n")
    _, installs = house("env")
    assert len(installs) == 1 and "--editable" in installs[0]
    assert len(list(house.folder.glob(".venv/.qgcam-*"))) == 2


def test_make_goes_on_after_a_failed_installation(house):
    python = house.folder / "python"
    python.write_text(FAKE_PYTHON.replace('*) echo', '*install*) echo "disk full"; exit 1 ;;\n  *) echo'))
    done, _ = house("env")
    assert done.returncode != 0 and "disk full" in done.stdout + done.stderr
    assert not list(house.folder.glob(".venv/.qgcam-*"))
    (house.folder / ".venv/bin/python").write_text(FAKE_PYTHON)
    done, installs = house("env")
    assert done.returncode == 0 and len(installs) == 2


def test_make_refuses_a_python_that_does_not_fit(house):
    (house.folder / "python").write_text("#!/bin/sh\nexit 1\n")
    done, _ = house("env")
    assert done.returncode != 0
    assert "Python 3.11 or 3.12 with venv is needed" in done.stderr and "apt-get install python3.11-venv" in done.stderr


def test_make_keeps_a_users_python_and_ipython_out(house):
    with open(house.folder / "Makefile", "a") as makefile:
        makefile.write("\nshow:\n\t@env\n")
    leaks = {"PYTHONPATH": "/leak", "PYTHONSTARTUP": "/leak", "IPYTHONDIR": "/leak", "JUPYTER_PATH": "/leak",
             "MPLCONFIGDIR": "/leak", "JUPYTER_DATA_DIR": "/leak", "PYTEST_ADDOPTS": "/leak"}
    done, _ = house("show", **leaks)
    assert done.returncode == 0 and "/leak" not in done.stdout
    assert f"IPYTHONDIR={house.folder}/.venv/user/ipython" in done.stdout


FAKE_MAKE = """#!/bin/bash
echo "making $1"
sleep 300 & echo $! >> "$PIDS"           # holds our output open
setsid sleep 300 & echo $! >> "$PIDS"    # and so does this one, in a session of its own
if [[ "$1" == "$HANGS" ]]; then sleep 300; fi
"""


@pytest.fixture
def script(tmp_path):
    """.ci/run in a folder with a `make` that leaves two processes behind; starts it, and says which are alive."""
    for place in (".ci", "bin"):
        (tmp_path / place).mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    for name, text in (("make", FAKE_MAKE), ("python3.11", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    pids = tmp_path / "pids"

    def start(hangs="", **variables):
        environ = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PIDS": str(pids), "HANGS": hangs}
        return subprocess.Popen([str(tmp_path / ".ci/run")], env=environ | variables, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def alive(wait=10):
        """Those that are no zombies; a killed one may need a moment to go."""
        end, states = time.monotonic() + wait, [Path(f"/proc/{pid}/stat") for pid in pids.read_text().split()]
        while True:
            left = [file for file in states if file.exists() and file.read_text().rpartition(")")[2].split()[0] != "Z"]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

    start.pids, start.alive = pids, alive
    yield start
    for file in alive(0) if pids.exists() else ():
        os.kill(int(file.parent.name), signal.SIGKILL)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds what is left through /proc")


@needs_proc
def test_ci_waits_for_nothing_that_a_step_leaves_behind(script):
    said, _ = script().communicate(timeout=60)
    steps = ("test", "reproduce", "other-processor", "docs")
    assert [line for line in said.splitlines() if line.startswith("making")] == [f"making {step}" for step in steps]
    assert len(script.pids.read_text().split()) == 2 * len(steps) and not script.alive()


@needs_proc
def test_ci_ends_a_step_that_hangs(script):
    process = script(hangs="reproduce", LIMIT="2s")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 124 and "make reproduce did not end within 2s" in said and "making docs" not in said
    assert not script.alive()


@needs_proc
def test_ci_that_is_stopped_takes_its_step_along(script):
    process, deadline = script(hangs="test"), time.monotonic() + 30
    while not script.pids.exists() or len(script.pids.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143 and not script.alive()


# --- habits ---------------------------------------------------------------------------------------------------------

def test_no_import_star_in_the_package():
    for path in (ROOT / "qgcam_lib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.names[0].name == "*"), f"{path}:{node.lineno}"


def test_make_check_finds_the_tests_of_a_module_and_passes_over_comments(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / ".ci")
    import check

    found = [path.name for path in check.reached([Path("qgcam_lib/metrics/kernels.py")])]
    assert found[0] == "test_metrics.py" and "test_cli_score.py" in found and "test_boxes.py" not in found
    found = check.reached([Path("qgcam_lib/models/bridgetower.py")])  # the registry loads it by its name
    assert Path("tests/test_bridgetower.py") in found
    assert check.code('"Old."\nx = 1  # one') == check.code('"New."\n\nx = 1') != check.code("x = 2")


def test_nbdev_keeps_papermills_tags_and_the_users_profile_out():
    nbdev = tomllib.loads(read("pyproject.toml"))["tool"]["nbdev"]
    assert nbdev["allowed_cell_metadata_keys"] == ["tags"] and nbdev["exec_profile"] is False
    assert (ROOT / "nbs/papers/.notest").exists()


# --- what tracked files must not say ---------------------------------------------------------------------------------

def tracked():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: the list of tracked files is not known")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True, timeout=300)
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


# in pieces, so that this file names none of them either
_REGISTRIES = [("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "(?:org|com)"), ("conda", "anaconda", "org")]
FORBIDDEN = {
    "a machine's path": r"(?<![\w.])/(?:work|root|home|Users)/(?!(?:me|you|user)\b)[\w.]+|(?<![\w.$])/tmp/\w+",
    "a package registry's address": "|".join(r"\.".join(name) for name in _REGISTRIES),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_do_not_name(what):
    found = []
    for path in tracked():
        if path.suffix in {".safetensors", ".png", ".jpg", ".parquet", ".lock"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {hit.group(0)}" for hit in re.finditer(FORBIDDEN[what], text)]
    assert not found, f"tracked files name {what}: {found[:10]}"


def test_tracked_files_are_small_and_no_results():
    index = ROOT / "qgcam_lib/_modidx.py"  # which nbdev writes: a line a name
    heavy = [path for path in tracked() if path.stat().st_size > 1_000_000 and path != index]
    assert all(path.is_relative_to(ROOT / "data/zoo") for path in heavy), heavy
    made = [path for path in tracked() if path.is_relative_to(ROOT / "outputs")]
    assert all(path.is_relative_to(ROOT / "outputs/reference") for path in made if path.name != "README.md"), made
    assert sum(path.stat().st_size for path in made) < 2_000_000


def test_licence_and_citation():
    text = read("LICENSE")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    cite = yaml.safe_load(read("CITATION.cff"))
    version = re.search(r'__version__ = "(.+)"', read("qgcam_lib/__init__.py")).group(1)
    assert cite["license"] == "Apache-2.0" and cite["version"] == version
    assert len(cite["references"]) == 4
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cfc7749b96f63bd3", "not the licence's text"


def test_sources_are_complete_and_agree_with_the_models():
    from qgcam_lib.models.registry import MODELS

    sources = tomllib.loads(read("data/sources.toml"))
    keys = {"kind", "what", "address", "place", "bytes", "sha256", "licence", "gated"}
    more = {"md5", "stated", "needs", "steps"}
    assert all(keys <= set(source) <= keys | more for source in sources.values())
    assert all(source.get("stated") for source in sources.values() if source["kind"] == "data set" and (
        source["sha256"] or source.get("md5"))), "a checksum without who states it"
    assert all(re.fullmatch(r"([0-9a-f]{64})?", source["sha256"]) for source in sources.values())
    licences = {source["address"]: source["licence"] for source in sources.values()}
    for name, model in MODELS.items():
        if model.role == "ranker" and model.checkpoint:  # made of a model that has a source of its own
            assert licences[model.checkpoint] == model.licence, name
        elif model.checkpoint:
            assert (sources[name]["address"], sources[name]["licence"]) == (model.checkpoint, model.licence), name
