"""The house: rooms by idea, who may import whom, the order of reading, and no private name across modules."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "qgcam_lib"
sys.path.insert(0, str(ROOT / "docs"))

from contents import LIB, rooms  # noqa: E402

MOST_ARROWS = 110
NOTEBOOKS = [path for room in rooms() for path in room["notebooks"]]


def module_of(path):
    """qgcam_lib/a/b.py -> a.b; a package's face is the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_of(path): path for path in PACKAGE.rglob("*.py") if path.name not in ("_modidx.py", "__main__.py")}


def imported(source, package=""):
    """(module, name) of everything that code takes from qgcam_lib; `package` is where relative imports start."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("qgcam_lib."):
                    yield alias.name.removeprefix("qgcam_lib."), ""
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                up = package.split(".") if package else []
                home = ".".join([*up[:len(up) - node.level + 1], *home.split(".")]).strip(".")
            elif home == "qgcam_lib" or home.startswith("qgcam_lib."):
                home = home.removeprefix("qgcam_lib").strip(".")
            else:
                continue
            for alias in node.names:
                inner = f"{home}.{alias.name}".strip(".")
                yield (inner, "") if inner in SOURCES else (home, alias.name)


def package_of(module):
    return module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def needs(module):
    """The modules that a module imports, at the top and inside functions."""
    found = imported(SOURCES[module].read_text(encoding="utf-8"), package_of(module))
    return {home for home, _ in found if home in SOURCES} - {module}


def contract(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return next(one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == name)


def test_every_room_has_a_line_in_the_contract():
    house = contract("house")
    assert house["type"] == "layers" and house["exhaustive"] and house["containers"] == ["qgcam_lib"]
    named = re.findall(r"\((\w+)\)", " ".join(house["layers"]))
    assert sorted(named) == sorted({module.split(".")[0] for module in SOURCES if module})
    assert {contract(name)["type"] for name in ("no-cycle", "scores-are-light")} == {"acyclic_siblings", "forbidden"}
    assert "ignore_imports" not in contract("no-cycle")


def test_the_house_is_small_enough_to_draw():
    """At most 25 rooms, 8 floors when each room is one above the highest that it imports from, and 110 arrows."""
    arrows = {}
    for module in SOURCES:
        room = module.split(".")[0]
        arrows.setdefault(room, set()).update(home.split(".")[0] for home in needs(module))
    arrows.pop("")
    arrows = {room: below - {room, ""} for room, below in arrows.items()}

    @cache
    def floor(room):
        return 1 + max(map(floor, arrows[room]), default=0)  # the contract has no cycle

    assert len(arrows) <= 25 and max(map(floor, arrows)) <= 8
    assert sum(map(len, arrows.values())) <= MOST_ARROWS


def test_no_module_is_longer_than_350_lines():
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in SOURCES.items()}
    long = {module: count for module, count in lines.items() if count > 350}
    assert not long, long


def test_a_public_class_name_has_one_definition():
    homes = {}
    for module, path in SOURCES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert not twice, twice


def test_no_private_name_leaves_its_module():
    found = [f"{module} takes {home}.{name}" for module, path in SOURCES.items()
             for home, name in imported(path.read_text(encoding="utf-8"), package_of(module))
             if name.startswith("_") and not name.startswith("__")]
    assert not found, f"{len(found)}: {found[:5]}"


def test_faces_load_nothing_heavy_and_open_no_second_path():
    for module, path in SOURCES.items():
        if path.name == "__init__.py" and module not in ("", "miniworld"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
            assert len(names) <= 8, f"the face of {module} hands on {len(names)} names"


# --- the order of reading ---------------------------------------------------------------------------------------------

def code_of(path):
    """Source of each code cell without directives and magics."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            yield "\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!")))


def test_contents_name_every_notebook_once():
    assert sorted(NOTEBOOKS) == sorted(path for path in LIB.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    assert all(room["about"].endswith(".") and room["title"] for room in rooms())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(LIB).as_posix())
def test_a_notebook_is_named_as_its_module(path):
    exported = [line.split()[-1] for cell in code_of(path) for line in cell.splitlines() if "#| default_exp" in line]
    if path.name == "00_tour.ipynb":
        assert not exported
        return
    number, _, name = path.stem.partition("_")
    place = ".".join([*path.parent.relative_to(LIB).parts, name])
    assert exported == [place] and re.fullmatch(r"\d\d", number)


def test_numbers_start_anew_in_each_folder_and_leave_no_gap():
    for folder in {path.parent for path in NOTEBOOKS}:
        numbers = sorted(int(path.stem[:2]) for path in folder.glob("*.ipynb"))
        first = 0 if folder == LIB else 1
        missing = set(range(first, first + len(numbers))) - set(numbers)
        assert not missing, f"{folder.relative_to(LIB)}: number {missing} is missing"


def test_no_notebook_uses_what_a_later_one_defines():
    known, wrong = set(), []
    for path in NOTEBOOKS:
        if path.name == "00_tour.ipynb":
            continue
        own = ".".join([*path.parent.relative_to(LIB).parts, path.stem.partition("_")[2]])
        known.add(own)
        for cell in code_of(path):
            for home, _ in imported(cell):
                homes = needs(home) if home in SOURCES and SOURCES[home].name == "__init__.py" else {home}
                wrong += [f"{path.relative_to(LIB).as_posix()} uses {one}" for one in homes
                          if one in SOURCES and one not in known and SOURCES[one].name != "__init__.py"]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(dict.fromkeys(wrong))


def test_links_between_notebooks_lead_somewhere():
    """Also those of the lessons and paper notebooks; and the tour has a link into every room."""
    lost, toured = [], set()
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" in path.parts:
            continue
        for cell in nbformat.read(path, as_version=4).cells:
            for address in re.findall(r"\]\(([^)\s#]+\.ipynb)", cell.source) if cell.cell_type == "markdown" else ():
                target = (path.parent / address).resolve()
                lost += [] if target.is_file() else [f"{path.relative_to(ROOT)} to {address}"]
                toured |= {target} if path.name == "00_tour.ipynb" else set()
    assert not lost, "\n".join(lost)
    assert not [room["path"] for room in rooms() if not toured & set(room["notebooks"])]


# --- cells -----------------------------------------------------------------------------------------------------------

def test_an_export_cell_is_no_longer_than_sixty_lines_or_says_why():
    """A longer one has its reason in the prose just before it, with the word "longer"."""
    long = []
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        for before, cell in zip([None, *cells], cells):
            if cell.cell_type == "code" and "#| export" in cell.source and cell.source.count("\n") > 60:
                if before is None or before.cell_type != "markdown" or "longer" not in before.source:
                    long.append(f"{path.relative_to(LIB).as_posix()}: {cell.source.count(chr(10))} lines")
    assert not long, "\n".join(long)


def test_a_check_that_something_fails_is_run():
    """`expect_fail` checks what stands in its `with` block; called with a function it checks nothing."""
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        for number, cell in enumerate(nbformat.read(path, 4).cells):
            if cell.cell_type != "code" or "expect_fail(" not in cell.source:
                continue
            tree = ast.parse(cell.source)
            entered = {id(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With)
                       for item in node.items}
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
                     and getattr(node.func, "id", "") == "expect_fail"]
            assert not [call for call in calls if id(call) not in entered], f"{path.name}, cell {number}"
