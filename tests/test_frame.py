"""The frame: lock, conda file, settings, sources, and what must not stand in a tracked file."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_lock_covers_what_is_asked_for(python):
    have = applying(python)
    for line in read("requirements.in").splitlines():
        if line.strip() and not line.startswith("#"):
            asked = Requirement(line)
            name = asked.name.lower().replace("_", "-")
            assert name in have, f"{asked} is missing for Python {python}"
            assert asked.specifier.contains(have[name], prereleases=True), f"{asked}, locked {have[name]}"


def test_the_running_environment_is_the_locked_one():
    from importlib.metadata import PackageNotFoundError, version

    have = applying(f"3.{sys.version_info.minor}")
    for name in ("torch", "numpy", "pandas", "nbdev", "papermill", "transformers", "snakemake", "pytest"):
        try:
            assert version(name) == have[name], f"{name}: run `make env`"
        except PackageNotFoundError:
            pytest.fail(f"{name} is not installed: run `make env`")


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
    got = load_settings(path, environ={"QGCAM_BATCH_SIZE": "5"})
    assert (got.seed, got.batch_size, got.threads, got.device) == (4, 5, 4, "cpu")


def test_settings_shipped_values_are_the_defaults():
    from qgcam_lib.settings import ROOT as FOUND
    from qgcam_lib.settings import Settings, load_settings

    assert FOUND == ROOT
    assert load_settings(environ={}) == Settings()
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(read("settings.ini"))
    assert set(parser["qgcam"]) == set(Settings.model_fields)


@pytest.mark.parametrize("source", ["file", "environment"])
def test_settings_unknown_key(ini, source):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    path = ini("batchsize = 4" if source == "file" else "seed = 1")
    environ = {"QGCAM_BATCHSIZE": "4"} if source == "environment" else {}
    with pytest.raises(SettingsError, match="(?i)batchsize"):
        load_settings(path, environ=environ)


@pytest.mark.parametrize(("key", "value"), [
    ("batch_size", "many"), ("batch_size", "0"), ("seed", str(2**32)), ("device", "cuda:x"), ("data_root", ""),
])
@pytest.mark.parametrize("source", ["file", "environment"])
def test_settings_wrong_type(ini, key, value, source):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    path = ini(f"{key} = {value}" if source == "file" else "")
    environ = {f"QGCAM_{key.upper()}": value} if source == "environment" else {}
    with pytest.raises(SettingsError, match=key):
        load_settings(path, environ=environ)


@pytest.mark.parametrize(("head", "line"), [("[other]", "seed = 1"), ("[qgcam]", "seed = 1\nseed = 2"), ("", "seed")])
def test_settings_broken_file(ini, head, line):
    from qgcam_lib.errors import SettingsError
    from qgcam_lib.settings import load_settings

    with pytest.raises(SettingsError, match=r"settings\.ini"):
        load_settings(ini(line, head=head), environ={})


def test_settings_paths(ini, monkeypatch, tmp_path):
    from qgcam_lib.settings import load_settings

    monkeypatch.chdir(tmp_path)
    got = load_settings(ini("outputs = results/../here", "cache = ~/there"), environ={"QGCAM_DATA_ROOT": str(tmp_path)})
    assert (got.outputs, got.cache, got.data_root) == (ROOT / "here", Path.home() / "there", tmp_path)


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
    "both sides of a conflict": r"(?m)^(?:<{7}|>{7}) \S+$",
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
    heavy = [path for path in tracked() if path.stat().st_size > 1_000_000]
    assert all(path.is_relative_to(ROOT / "data/zoo") for path in heavy), heavy
    assert sum(path.stat().st_size for path in tracked()) < 100_000_000
    made = [path for path in tracked() if path.is_relative_to(ROOT / "outputs")]
    assert all(path.is_relative_to(ROOT / "outputs/reference") for path in made if path.name != "README.md"), made
    assert sum(path.stat().st_size for path in made) < 2_000_000


def test_sources_are_complete_and_agree_with_the_models():
    from qgcam_lib.models.registry import MODELS

    sources = tomllib.loads(read("data/sources.toml"))
    keys = {"kind", "what", "address", "place", "sha256", "licence", "gated"}
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
            assert name in sources, f"{name}: no entry in data/sources.toml"
            assert (sources[name]["address"], sources[name]["licence"]) == (model.checkpoint, model.licence), name
