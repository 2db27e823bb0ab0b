"""`make check`: the changed notebooks and the tests that the edit reaches, nearest first, for SECONDS (default 30).

Changed is what differs from the commit SINCE; without it from the last commit, or from the one before where nothing is
uncommitted. A test file reaches a module over so many imports, its own and the library's; a changed file of another
kind (a table, the Snakefile) reaches the test files that name it. What did not fit is named: `make test` runs it.
"""

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections import defaultdict
from pathlib import Path

import grimp

SECONDS, CORES = float(os.environ.get("SECONDS") or 30), int(os.environ.get("CORES") or 2)
DURATIONS = Path(".pytest_cache/durations.xml")  # that `make test` leaves


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, timeout=60).stdout


def text(path):
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def code(source):
    """A module without its docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def changed(since):
    """Paths that differ from a commit; a module only where its code does."""
    names = git("diff", "--name-only", since) + git("ls-files", "--others", "--exclude-standard")
    paths = [Path(name) for name in names.splitlines()]
    return [path for path in paths if path.parts[0] != "qgcam_lib" or path.suffix != ".py"
            or code(git("show", f"{since}:{path}")) != code(text(path))]


def distances(modules):
    """Module -> over how many imports it reaches one of `modules`; what the registry loads by name is an import too."""
    graph = grimp.build_graph("qgcam_lib", cache_dir=".import_linter_cache")
    loaders = re.findall(r"([\w.]+):load\w*\"", text(Path("qgcam_lib/models/registry.py")))
    for name in {f"qgcam_lib.models.{name.removeprefix('qgcam_lib.models.')}" for name in loaders} & graph.modules:
        graph.add_import(importer="qgcam_lib.models.registry", imported=name)
    found, ring = {}, set(modules) & graph.modules
    for far in range(len(graph.modules)):
        found |= dict.fromkeys(ring, far)
        ring = {one for name in ring for one in graph.find_modules_that_directly_import(name)} - found.keys()
    return found


def reached(paths):
    """Test files that changed paths reach: those named like a changed module or its folder, then the nearest first."""
    paths = [path for path in paths if path.parts[:2] != ("nbs", "lib")]  # of these the module counts
    near = distances({".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths})
    others, found = [path for path in paths if path.parts[0] not in ("qgcam_lib", ".ci")], []
    for file in Path("tests").rglob("test_*.py"):
        source = text(file)
        names = {name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
                 for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))}
        far = [near[name] for name in names & near.keys()]
        far += [0 for path in others if path == file or path.stem in names
                or (path.stem if path.suffix == ".ipynb" else path.name) in source]
        alike = any(word in file.stem for path in paths for word in path.with_suffix("").parts[-2:])
        found += [(not alike, min(far), file)] if far else []
    return [file for *_, file in sorted(found)]


def main():
    since = os.environ.get("SINCE") or ("HEAD" if git("status", "--porcelain") else "HEAD~1")
    paths, known, spent, now, left = changed(since), defaultdict(float), 0.0, [], []
    for case in xml.parse(DURATIONS).iter("testcase") if DURATIONS.is_file() else ():
        known[case.get("classname")] += float(case.get("time"))
    for file in reached(paths):
        (now if spent < SECONDS * CORES else left).append(str(file))
        name = ".".join(file.with_suffix("").parts)
        spent += known.get(name, text(file).count("\n") / 50)  # an unknown file counts by its length
    notebooks = [str(path) for path in paths if path.match("nbs/l*/**/*.ipynb") and path.is_file()]
    print(f"{len(paths)} files differ from {since}. Notebooks:", *notebooks, "Tests:", *now)
    if left:
        print("Left to make test, which reach it from afar:", *left)
    todo = [["nbdev-test", "--n-workers", str(CORES), "--path-re", f"({'|'.join(notebooks)})$"]] if notebooks else []
    todo += [["pytest", "-q", "-n", str(CORES), "--dist", "loadfile", "--no-loadscope-reorder", *now]] if now else []
    environment = os.environ | {"CHECK_SECONDS": str(SECONDS)}
    sys.exit(max((subprocess.run(command, env=environment).returncode for command in todo), default=0))


if __name__ == "__main__":
    main()
