"""The reference: every public name of qgcam_lib with its signature and docstring, a page a module.

It is read from the sources, without importing them, so that a page needs no torch. A name that a room's face hands on
stands there under the short name that users write (`qgcam_lib.metrics.score_maps`), and is found by the long one too.
Sphinx makes the object index from the directives that are written here. In a docstring `name: text.` describes an
argument; it becomes a line under Parameters, likewise what is returned and raised.
"""

import ast
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "qgcam_lib"
SPECIAL = re.compile(r"([\\*_\[\]<>$#{}|~^+\-!&@])")


def prose(text: str) -> str:
    """Plain text of a docstring as Markdown: what stands in backticks is code, everything else is text."""
    pieces = re.split(r"(``.+?``|`[^`\n]+`)", text)
    kept = [piece if piece.startswith("`") else SPECIAL.sub(r"\\\1", piece).replace("`", r"\`") for piece in pieces]
    return re.sub(r"(?m)^(\s*\d+)([.)])", r"\1\\\2", "".join(kept))


_HEAD = re.compile(r"(?:^|(?<=[.;] )|(?<=\.\) ))(?:([a-z_]\w*(?:, [a-z_]\w*)*)((?: \([^()]*\))?): "
                   r"|(Returns|Raises|Errors:|Source:) "
                   r"|(?=[A-Z]\w*Error\b)())|(?<=; )(returns) ")


def fields_of(text: str, names: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """A docstring as its paragraphs of prose and its fields: Parameters (of `names`), Returns, Raises; as Markdown."""
    rest, fields = [], {"Parameters": [], "Returns": [], "Raises": []}
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"(?m)^\s*([*-]|\d+\.) |>>>", paragraph):  # a list or an example
            rest.append("\n".join(line.strip() for line in prose(paragraph).splitlines()))
            continue
        flat = " ".join(paragraph.split())
        heads = [one for one in _HEAD.finditer(flat) if not one[1] or set(one[1].split(", ")) <= names]
        ends = [one.start() for one in heads[1:]] + [len(flat)]
        before = flat[: heads[0].start()] if heads else flat
        rest += [prose(re.sub(r"[;,]$", ".", before.strip()))] if before.strip() else []
        for head, end in zip(heads, ends):
            body = re.sub(r";$", ".", flat[head.end():end].strip())
            if head[1]:
                fields["Parameters"].append(f"* **{prose(head[1])}**{prose(head[2])}: {prose(body)}")
            elif head[3] == "Source:":
                rest.append(prose(f"Source: {body}"))
            else:
                fields["Returns" if "eturns" in head[0] else "Raises"].append(f"* {prose(body[:1].upper() + body[1:])}")
    return rest, fields


def described(node: ast.AST) -> str:
    """The docstring of a module, class or function as Markdown: paragraphs, then Parameters, Returns and Raises."""
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        given = node.args
        names = {one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs,
                                     *filter(None, [given.vararg, given.kwarg])]}
    else:
        body = [*node.body, *(inner for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                              for inner in one.args.args + one.args.kwonlyargs)]
        names = {one.target.id for one in body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
        names |= {one.arg for one in body if isinstance(one, ast.arg)}
    rest, fields = fields_of(text, names)
    lists = [f":{name}:\n" + "\n".join(f"    {one}" for one in found) for name, found in fields.items() if found]
    return "\n\n".join([*rest, "\n".join(lists)] if lists else rest)


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
    """The directives of a module's public names, what users need first. faces: as from `faces_of`."""
    public = next((ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                   and ast.unparse(node.targets[0]) == "__all__"), [])
    names, public = full_names(tree, module, faces), set(public)
    def place_of(node: ast.AST) -> int:
        """What the face hands on first, then functions and classes, then values."""
        is_data = isinstance(node, ast.Assign | ast.AnnAssign)
        return 2 if is_data else 1 - (f"{module}.{getattr(node, 'name', '')}" in faces)

    for node in sorted(tree.body, key=place_of):
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


def module_name(path: Path) -> str:
    """The dotted name of a module's file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def reference_page(path: Path, notebook: Path, places: list[str], faces: dict[str, str]) -> str:
    """The reference of a module: its targets (`places`), its public names. The search leaves its text out."""
    module, tree = module_name(path), ast.parse(path.read_text(encoding="utf-8"))
    targets = [f"```{{py:module}} {name}\n```\n" for name in places]
    about = f"{described(tree)} [The notebook](../{notebook.as_posix()}) is its source.\n"
    head = ["---\nnosearch: true\n---\n", f"# {prose(module)}\n", *targets, about]
    return "\n".join([*head, *objects(tree, module, faces)])


FIRST = (  # what a user needs first, in the order of use
    "metrics.score.score_maps", "maps.MapProtocol", "statistics.summary.summarize", "statistics.summary.compare",
    "models.registry.load_model", "models.registry.list_models", "grounding.run.ground",
    "phrase_detection.score.evaluate", "probes.run.probe", "referring.run.refer",
    "finetune.relcomp.interpolation.interpolate", "runs.record.find_runs")


def first_names(faces: dict[str, str]) -> str:
    """The names of FIRST with the first sentence of each docstring, linked."""
    lines = []
    for module, name in (f"qgcam_lib.{one}".rsplit(".", 1) for one in FIRST):
        tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))
        node = next(one for one in tree.body if getattr(one, "name", "") == name)
        shown = f"{faces.get(f'{module}.{name}', module)}.{name}"
        about = re.split(r"(?<=[.:])\s", " ".join((ast.get_docstring(node) or "").split()))[0].rstrip(".:") + "."
        lines.append(f"* {{py:obj}}`{shown}`: {prose(about)}")
    return "\n".join(lines)


def _toctree(pages: list[str]) -> str:
    return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n"


def write_reference(target: Path, chosen: list[dict]) -> str:
    """Write the pages of the rooms' modules into a folder, and where each name is defined; returns the first page."""
    target.mkdir(parents=True, exist_ok=True)
    faces, declared, sources, pages = faces_of(), set(), {}, []
    for room in chosen:
        names = []
        for path, notebook in modules(room).items():
            module = module_name(path)
            places = [module, *dict.fromkeys(face for name, face in faces.items() if name.rsplit(".", 1)[0] == module)]
            text = reference_page(path, notebook, [one for one in places if one not in declared], faces)
            (target / f"{module}.md").write_text(text, encoding="utf-8")
            declared |= set(places)
            names.append(module)
            sources[module] = notebook.with_suffix(".html").as_posix()
            sources |= {f"{face}.{name.rsplit('.', 1)[1]}": sources[module] for name, face in faces.items()
                        if name.rsplit(".", 1)[0] == module}
        if names:
            pages.append(f"room_{room['path'].strip('.').replace('/', '_') or 'ground'}")
            text = f"# {room['title']}: reference\n\n{room['about']}\n\n" + _toctree(names)
            (target / f"{pages[-1]}.md").write_text(f"---\nnosearch: true\n---\n\n{text}", encoding="utf-8")
    (target / "sources.json").write_text(json.dumps(sources), encoding="utf-8")
    return (f"# Reference\n\nEvery public name, a page a module ({{ref}}`all modules <modindex>`). [source] leads to "
            "the cell of the notebook that defines a name.\n\n## The twelve names that a user needs first\n\n"
            f"{first_names(faces)}\n\n## All\n\n{_toctree([f'api/{page}' for page in pages])}")
