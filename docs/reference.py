"""The reference: every public name of qgcam_lib with its signature and docstring, a page a room.

It is read from the sources, without importing them, so that a page needs no torch. A name that a room's face hands on
stands there under the short name that users write (`qgcam_lib.metrics.score_maps`), and is found by the long one too.
Sphinx makes the object index and the search from the directives that are written here.
"""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

from contents import rooms

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "qgcam_lib"
SPECIAL = re.compile(r"([\\*_\[\]<>$#{}|~^+\-!&@])")


def prose(text: str) -> str:
    """Plain text of a docstring as Markdown: what stands in backticks is code, everything else is text."""
    pieces = re.split(r"(``.+?``|`[^`\n]+`)", text)
    kept = [piece if piece.startswith("`") else SPECIAL.sub(r"\\\1", piece).replace("`", r"\`") for piece in pieces]
    return re.sub(r"(?m)^(\s*\d+)([.)])", r"\1\\\2", "".join(kept))


def described(node: ast.AST) -> str:
    """The docstring of a module, class or function as Markdown paragraphs; empty where there is none."""
    paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
    return "\n\n".join("\n".join(line.strip() for line in prose(one).splitlines()) for one in paragraphs)


def full_names(tree: ast.Module, module: str, faces: dict[str, str]) -> dict[str, str]:
    """The names of the package that a module uses, with the full name under which each stands in the reference."""
    found = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in (one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)):
        up = module.split(".")[: -node.level] if node.level else []
        source = ".".join([*up, *filter(None, [node.module])])
        if source.startswith("qgcam_lib"):
            found |= {one.asname or one.name: f"{source}.{one.name}" for one in node.names}
    return {short: f"{faces[full]}.{full.rsplit('.', 1)[1]}" if full in faces else full
            for short, full in found.items()}


class Readable(ast.NodeTransformer):
    """An argument list as the reference shows it: names of the package in full (one short name can mean two classes), a
    type without what the command line adds to it, a default that is computed as "..."."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.names.get(node.id, node.id), mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) == "Annotated":
            return self.visit(node.slice.elts[0])
        if ast.unparse(node.value) == "Literal":
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        try:  # a type in quotes
            return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node
        except SyntaxError:
            return node

    def shown(self, node: ast.expr | None) -> ast.expr | None:
        """A type as it is shown."""
        return node and self.visit(node)


_COMPUTED = (ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp, ast.JoinedStr, ast.Lambda)


def _default(node: ast.expr | None) -> ast.expr | None:
    computed = node is not None and any(isinstance(one, _COMPUTED) for one in ast.walk(node))
    return ast.Constant(...) if computed else node


def signature(node: ast.FunctionDef, names: dict[str, str], *, bound: bool = False) -> str:
    """The arguments and the result of a function; names: as from `full_names`; bound: without self."""
    node, types = deepcopy(node), Readable(names)
    given = node.args
    if bound and (first := given.posonlyargs or given.args):
        del first[0]
    for one in [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]:
        one.annotation = types.shown(one.annotation)
    given.defaults, given.kw_defaults = [*map(_default, given.defaults)], [*map(_default, given.kw_defaults)]
    result = f" -> {ast.unparse(types.shown(node.returns))}" if node.returns else ""
    return f"({ast.unparse(given)}){result}".replace("\n", " ")


def _decorators(node: ast.AST) -> set[str]:
    return {ast.unparse(one).split("(")[0].rsplit(".", 1)[-1] for one in node.decorator_list}


def _fields(node: ast.ClassDef, names: dict[str, str]) -> str:
    """The arguments that make an object: of a dataclass its fields, else those of `__init__`."""
    if "dataclass" in _decorators(node):
        fields = [deepcopy(one) for one in node.body
                  if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one)]
        for one in fields:
            one.annotation, one.value = Readable(names).shown(one.annotation), _default(one.value)
        return "(" + ", ".join(ast.unparse(one).replace("\n", " ") for one in fields) + ")"
    made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    return signature(made, names, bound=True).split(" -> ")[0] if made else ""


def directive(kind: str, name: str, arguments: str, text: str, module: str, long: str = "") -> str:
    """A directive of Sphinx's Python domain. long: the name by which it is found as well."""
    options = f":module: {module}\n" + f":canonical: {long}\n" * bool(long)
    return f"`````{{py:{kind}}} {name}{arguments}\n{options}\n{text}\n`````\n"


def _kinds(node: ast.FunctionDef, names: dict[str, str]) -> tuple[str, str]:
    """Kind of a method's directive, and whether its arguments are shown."""
    marks = _decorators(node)
    if marks & {"property", "cached_property"}:
        return "property", ""
    return ("staticmethod" if "staticmethod" in marks else "classmethod" if "classmethod" in marks else "method",
            signature(node, names, bound="staticmethod" not in marks))


def objects(tree: ast.Module, module: str, faces: dict[str, str]) -> Iterator[str]:
    """The directives of a module's public names, in the order of its source. faces: as from `faces_of`."""
    public = next((ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                   and ast.unparse(node.targets[0]) == "__all__"), [])
    names, public = full_names(tree, module, faces), set(public)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = getattr(node, "name", getattr(target, "id", ""))
        place = faces.get(f"{module}.{name}", module)
        known = {"module": place, "long": f"{module}.{name}" if place != module else ""}
        if isinstance(node, ast.FunctionDef) and _decorators(node) & {"patch", "patch_to"}:
            owner = ast.unparse(node.args.args[0].annotation).strip("'\"")
            if not name.startswith("_") and owner.isidentifier():
                kind, arguments = _kinds(node, names)
                yield directive(kind, f"{owner}.{name}", arguments, described(node), module)
        elif name not in public:
            continue
        elif isinstance(node, ast.FunctionDef):
            yield directive("function", name, signature(node, names), described(node), **known)
        elif isinstance(node, ast.ClassDef):
            yield directive("class", name, _fields(node, names), described(node), **known)
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
                    kind, arguments = _kinds(one, names)
                    yield directive(kind, f"{name}.{one.name}", arguments, described(one), place)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield directive("data", name, "", "", **known)
            public.discard(name)  # a value that is built up in steps stands once


def faces_of(package: Path = PACKAGE) -> dict[str, str]:
    """Long name -> module of the face that hands it on, where the face is that of the name's own room."""
    found = {}
    for face in sorted(package.rglob("__init__.py")):
        place = ".".join(face.parent.relative_to(package.parent).parts)
        tree = ast.parse(face.read_text(encoding="utf-8"))
        for node in (one for one in tree.body if isinstance(one, ast.ImportFrom)):
            up = place.split(".")[: len(place.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*up, *filter(None, [node.module])])
            for name in node.names:
                short = name.asname or name.name
                is_module = (face.parent / f"{short}.py").is_file()  # the short name is taken
                if place != "qgcam_lib" and source.startswith(f"{place}.") and not is_module:
                    found.setdefault(f"{source}.{short}", place)
    return found


def modules(room: dict) -> dict[Path, Path]:
    """The modules of a room, each with its notebook, in the order of reading."""
    found = {}
    for notebook in room["notebooks"]:
        folder = PACKAGE / notebook.parent.relative_to(ROOT / "nbs" / "lib")
        module = folder / f"{re.sub(r'^[0-9]+_', '', notebook.stem)}.py"
        if module.is_file():
            found[module] = notebook.relative_to(ROOT / "nbs")
    return found


def reference_page(room: dict, faces: dict[str, str]) -> str:
    """The reference of a room: a section a module, its targets, its public names."""
    parts, declared = [f"# {room['title']}: reference\n"], set()
    for path, notebook in modules(room).items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        places = [module, *dict.fromkeys(place for name, place in faces.items() if name.rsplit(".", 1)[0] == module)]
        targets = [f"```{{py:module}} {name}\n```\n" for name in places if name not in declared]
        declared |= set(places)
        about = f"{described(tree)} [The notebook](../{notebook.as_posix()}).\n"
        parts += [f"## `{module}`\n", *targets, about, *objects(tree, module, faces)]
    return "\n".join(parts)


def write_reference(target: Path) -> list[str]:
    """Write the pages of the reference into a folder; returns their names in the order of the rooms."""
    target.mkdir(parents=True, exist_ok=True)
    faces, names = faces_of(), []
    for room in rooms():
        if modules(room):
            names.append(room["path"].strip(".").replace("/", "_") or "ground")
            (target / f"{names[-1]}.md").write_text(reference_page(room, faces), encoding="utf-8")
    return names
