"""What installs: a small core that works alone, extras that are asked for in one line, a face that loads nothing."""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from readme import blocks
from scipy import ndimage
from scipy.special import expit

from qgcam_lib.errors import EXTRAS
from qgcam_lib.maps import gaussian, spline_coefficients
from qgcam_lib.metrics.formulas import local_maxima
from qgcam_lib.probes.score import choice_scores

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLEAN = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def named(lines):
    """name -> requirement, without those on the project's own extras."""
    found = [Requirement(line) for line in lines]
    return {re.sub(r"[-_.]+", "-", one.name.lower()): one for one in found if one.name != "qgcam-lib"}


def python(code):
    """Some code in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# --- declared --------------------------------------------------------------------------------------------------------

def test_core_and_extras_name_what_requirements_in_names():
    """But for the extra live: the pages are built without it, see `make live`."""
    lines = (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    asked = named(line for line in lines if line and line[0] != "#")
    extras = {name: named(lines) for name, lines in PROJECT["optional-dependencies"].items() if name != "live"}
    declared = named(PROJECT["dependencies"]) | {name: one for extra in extras.values() for name, one in extra.items()}
    assert set(asked) - {"salesforce-lavis"} == set(declared)
    for name, one in declared.items():
        assert str(one.specifier), f"{name}: a lower bound is missing"
        assert one.specifier.contains(importlib.metadata.version(name), prereleases=True), f"{one} against the lock"
        exact = [pin.version for pin in asked[name].specifier if pin.operator == "=="]
        assert all(one.specifier.contains(version) for version in exact), one
    every = {extra for extra in PROJECT["optional-dependencies"] if extra not in ("all", "live")}
    (line,) = PROJECT["optional-dependencies"]["all"]
    assert set(Requirement(line).extras) == every


def test_what_the_library_imports_is_declared():
    """Every third-party import in the library belongs to the core, to an extra, or is named here."""
    files = [file for file in (ROOT / "qgcam_lib").rglob("*.py") if file.name != "_modidx.py"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    imported = set(re.findall(r"^\s*(?:from|import) ([a-zA-Z_]\w*)(?:[.\w]*)(?: import|$| as)", text, flags=re.M))
    core = {"PIL" if name == "pillow" else name.replace("-", "_") for name in named(PROJECT["dependencies"])}
    known = core | {module for modules in EXTRAS.values() for module in modules}
    beside = {"lavis", "srsly", "prettytable", "grounding_AP", "grounding_recall", "Table"}  # spaCy has srsly; TRICD
    assert imported - set(sys.stdlib_module_names) - {"qgcam_lib"} - known <= beside


# --- a face that loads nothing, and one line for an extra ------------------------------------------------------------

def test_the_face_loads_nothing_and_has_every_verb():
    code = """if True:
        import sys
        before = set(sys.modules)
        import qgcam_lib as q
        assert {name.split(".")[0] for name in set(sys.modules) - before} <= {"qgcam_lib", *sys.stdlib_module_names}
        q.score_maps
        heavy = {"torch", "transformers", "lavis", "matplotlib", "scipy.ndimage", "papermill"} & set(sys.modules)
        assert not heavy, heavy
        assert set(q.__all__) == {name for names in q.ROOMS.values() for name in names} <= set(dir(q))
        for name in q.__all__:
            assert callable(getattr(q, name)), name"""
    python(code)


def test_the_command_line_without_an_extra_ends_with_two_and_one_line(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.ones((4, 4), np.float32))
    (tmp_path / "b.parquet").write_text("never read")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    program = "import sys; from qgcam_lib.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "score", "m.npz", "b.parquet"], cwd=tmp_path, text=True,
                          env={**CLEAN, "PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"}, capture_output=True, timeout=100)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert 'pip install ".[parquet]"' in done.stderr and len(done.stderr.strip().splitlines()) == 1


LACKING = {  # package -> what cannot do without it
    "torch": ["from qgcam_lib.metrics.torchmetric import GroundingScores", "from qgcam_lib.explain import cam_for",
              "from qgcam_lib.phrase_detection.torchmetric import PhraseDetection",
              "from qgcam_lib.finetune.relcomp.training import RelCompRecipe",
              "score_maps(A, B, image_sizes=(4, 4), backend='torch')"],
    "skimage": ["score_map_literal(A[0], B[0], (4, 4))"], "matplotlib": ["import qgcam_lib.report.style"]}


@pytest.mark.parametrize("package", LACKING)
def test_what_needs_a_package_names_the_extra_that_brings_it(package):
    python(f"""if True:
        import sys
        sys.modules["{package}"] = None
        import numpy as np
        from qgcam_lib.errors import MissingExtra
        from qgcam_lib.metrics import score_maps
        from qgcam_lib.metrics.formulas import score_map_literal
        A, B = np.ones((1, 4, 4), np.float32), [[[0, 0, 2, 2]]]
        for line in {LACKING[package]}:
            try:
                exec(line)
            except MissingExtra as error:
                assert str(error).startswith("{package} is not installed") and "pip install" in str(error)
            else:
                raise AssertionError(line)""")


def test_two_tables_are_compared_without_torch(tmp_path):
    for name in "ab":
        rows = [f"{k},{k // 2},{np.sin(k + ord(name)) ** 2:.6f}" for k in range(24)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,group,io_ratio", *rows]))
    program = "import sys; sys.modules['torch'] = None; from qgcam_lib.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "compare", "a.csv", "b.csv"], cwd=tmp_path, text=True,
                          env={**CLEAN, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=100)
    assert done.returncode == 0 and "io_ratio" in done.stdout, done.stderr


# --- filters of our own, equal to SciPy's to the last bit ------------------------------------------------------------

MODES = {"zero": "grid-constant", "replicate": "nearest", "reflect": "mirror"}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 14, 24, 49, 100])
@pytest.mark.parametrize("edge", MODES)
def test_filters_are_scipys(n, edge):
    lines = np.random.default_rng(n).normal(size=(n, 3))
    for samples in (lines, np.eye(n)):
        theirs = ndimage.spline_filter1d(samples, 3, axis=0, mode=MODES[edge])
        assert np.array_equal(spline_coefficients(samples, edge), theirs)
    pad = {"zero": "constant", "replicate": "edge", "reflect": "reflect"}[edge]
    for sigma in (0.1, 0.8, 3.0):
        theirs = ndimage.gaussian_filter1d(lines, sigma, axis=0, mode=MODES[edge])
        assert np.array_equal(gaussian(lines, sigma, pad), theirs)
    a = np.random.default_rng(n).random((n, n + 2)).astype(np.float32).round(1)  # with plateaus
    assert np.array_equal(gaussian(gaussian(a, 1.1), 1.1, axis=1), ndimage.gaussian_filter(a, 1.1))
    assert np.array_equal(local_maxima(a), a >= ndimage.maximum_filter(a, size=3, mode="nearest"))


def test_confidences_are_scipys():
    lead = np.concatenate([np.random.default_rng(0).normal(0, 9, 5000), [0, 1e-300, 30, 800, -800, -709.5, -745]])
    assert np.array_equal(choice_scores(lead, np.zeros(len(lead)))["confidence"], expit(lead))


# --- the wheel, alone ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A fresh environment with the wheel and the core's dependencies: (folder of its programs, the environment)."""
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    folder = tmp_path_factory.mktemp("fresh")
    wheel = tools.build_wheel(folder)
    try:
        programs = tools.install(wheel, folder / "environment")
    except RuntimeError as error:
        if not re.search(r"(?i)failed to fetch|error sending request|dns|connect|timed out|network", str(error)):
            raise
        pytest.skip("no package registry can be reached from here")
    return programs, folder / "environment", tools


@pytest.mark.nightly
def test_the_core_installs_alone(fresh, tmp_path):
    """README's own maps, detections, expressions and probes run without any extra, and the environment is small."""
    programs, environment, tools = fresh
    assert tools.megabytes(environment) < tools.MOST_MEGABYTES
    path = {**CLEAN, "PATH": f"{programs}{os.pathsep}{CLEAN['PATH']}", "QGCAM_DATA_ROOT": str(ROOT / "data")}

    def run(place, *words):
        return subprocess.run(words, cwd=place, env=path, capture_output=True, text=True, timeout=400)

    absent = "from importlib.util import find_spec; print(*map(find_spec, ('torch', 'scipy', 'pyarrow', 'matplotlib')))"
    assert run(tmp_path, "python", "-c", absent).stdout == "None None None None\n"
    asked = 0
    for number, heading in enumerate(("Score your maps", "Score detections, expressions and probes",
                                      "Score your detections", "Score referring expressions",
                                      "Score conceptual probes")):
        place = tmp_path / str(number)
        place.mkdir()
        blocks.FILES[heading](place)
        for block in blocks.blocks():
            calls = [["python", "-c", block.text]] if block.language == "python" else map(shlex.split, block.commands)
            for words in calls if block.heading == heading else ():
                done, asked = run(place, *words), asked + 1
                needs_models = words[1:3] in (["refer", "run"], ["probe", "run"])
                assert done.returncode == 2 * needs_models, f"{words}: {done.stderr}"
                if needs_models:
                    assert done.stderr.count("\n") == 1 and 'pip install ".[models]"' in done.stderr
    assert asked >= 8
    assert run(tmp_path, "qgcam", "--version").stdout == f"qgcam {importlib.metadata.version('qgcam-lib')}\n"


@pytest.mark.nightly
def test_without_a_checkout_the_small_files_are_there_and_the_minis_are_said_to_be_missing(fresh, tmp_path):
    programs, _, _ = fresh
    code = """if True:
        from qgcam_lib.data.sources import read_sources
        from qgcam_lib.errors import FileFault, MissingExtra
        from qgcam_lib.phrase_detection.selfcheck import known_case
        from qgcam_lib.probes.builders.words import attribute_words
        from qgcam_lib.report.published import list_published
        from qgcam_lib.settings import ROOT, project_file
        assert read_sources() and known_case() and attribute_words() and len(list_published()) > 20
        try:
            project_file("data/zoo")
        except FileFault as fault:
            print(fault)"""
    done = subprocess.run([programs / "python", "-c", code], cwd=tmp_path, env=CLEAN, capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0 and "clone the project" in done.stdout, done.stderr
