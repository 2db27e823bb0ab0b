"""Sphinx configuration. Notebooks become pages with the outputs they store; nothing is run and nothing is fetched."""

import json
import re
import shutil
import time
from html import escape
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from PIL import Image
from sphinx import addnodes
from sphinx.util import logging

HERE, _BEGUN = Path(__file__).parent, time.time()
project = "qgcam"
author = "The qgcam maintainers"
copyright = "2026, the qgcam maintainers"
release = re.search(r'__version__ = "(.+)"', (HERE.parent / "qgcam_lib/__init__.py").read_text()).group(1)

extensions = ["myst_nb", "sphinx.ext.linkcode"]
templates_path = ["templates"]
exclude_patterns = ["_build", "generated/landing.md", "generated/groups.md",
                    # docs/pages.py makes pages of these
                    "guide.md", "status.md", "models.md", "data_sets.md", "try_it.md"]
html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_extra_path = ["live_files"] if (HERE / "live_files").is_dir() else []  # `make live`
html_css_files = ["pages.css"]
html_search_scorer = str(HERE / "scorer.js")
html_title = "qgcam"
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": False, "use_download_button": False,
                      "use_fullscreen_button": False, "collapse_navbar": True,
                      "navbar_persistent": [],  # the search box stands at the left, once
                      "primary_sidebar_end": []}  # a place for advertisements
html_sidebars = {"search": ["navbar-logo.html", "sbt-sidebar-nav.html"]}  # that page has a field of its own
maximum_signature_line_length = 100
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries = False  # the contents at the left are drawn anew on each page: sections only
html_show_sourcelink = False
html_copy_source = False
html_use_index = False  # 0.6 MB; the search finds names

nb_execution_mode = "off"
nb_output_stderr = "remove"
nb_ipywidgets_js = {}  # would load two scripts from a content network
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "fieldlist"]
myst_heading_anchors = 3
myst_update_mathjax = False
html_math_renderer = "mathml"


def _mathml(translator, node, display):
    """Write a formula as MathML, which browsers draw by themselves: no script, no picture, no network."""
    try:
        markup = convert(node.astext(), display="block" if display else "inline")
    except Exception as error:  # the converter raises many kinds; a formula that fails is a warning, so the build stops
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        markup = f"<code>{escape(node.astext())}</code>"
    if display:
        markup = f'<div class="math display" tabindex="0">{markup}</div>'
    translator.body.append(markup)


def _inline(translator, node):
    _mathml(translator, node, display=False)
    raise nodes.SkipNode


def _block(translator, node):
    _mathml(translator, node, display=True)
    raise nodes.SkipNode


_SOURCES = HERE / "generated" / "api" / "sources.json"
_WHERE = json.loads(_SOURCES.read_text(encoding="utf-8")) if _SOURCES.is_file() else {}


def linkcode_resolve(domain, info):
    """[source] of a name leads to the cell of the notebook that defines it; addresses as seen from generated/api."""
    owner, _, rest = info["fullname"].partition(".")
    page = _WHERE.get(f"{info['module']}.{owner}") or _WHERE.get(info["module"])
    return f"../{page}#def-{owner}" if page else None


def _own_types(app, doctree):
    """Keep as links the types of this package alone: Sphinx would look for each `int` among all names, and slowly."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("refdomain") == "py" and node.get("refspecific") is False:
            if node["reftarget"].startswith("qgcam_lib."):
                del node["refspecific"]
            else:
                shown = [child for child in node.children if not isinstance(child, addnodes.pending_xref_condition)]
                node.replace_self(shown or node.children[-1].children)


def _light_contents(app, name, template, context, doctree):
    """Give the arrows of the contents at the left a name, which the theme forgets, and leave out what nothing reads.
    On a page of the reference they end with the rooms: a room has up to 37 modules."""
    made = context.get("generate_toctree_html")

    def light(*parts, **options):
        if name.startswith("generated/api/"):
            options["maxdepth"] = 2
        html = str(made(*parts, **options)).replace("<summary>", '<summary aria-label="Show or hide what is below">')
        return re.sub(r'<li class="toctree-l\d"><a class="reference internal"', "<li><a", html)

    context["generate_toctree_html"] = light


def _without_spare_files(app, error):
    """Take out of the pages what none of them loads: the theme's icon script (a font draws the icons), other icons,
    translations, the maps of scripts."""
    static = Path(app.outdir) / "_static"
    shutil.rmtree(static / "locales", ignore_errors=True)
    for path in static.rglob("*"):
        if path.name.startswith(("fontawesome.js", "fa-b", "fa-r")) or path.suffix == ".map":
            path.unlink()


_SHORTER = [(re.compile(pattern), short) for pattern, short in (
    (r'<span class="pre">([^<]*)</span>', r"\1"),
    (r'<span class="(?:n|p|w|o|mi|mf|nb|ow|si|nn|bp|fm|vm)">([^<]*)</span>', r"\1"),  # the colour of the text
    (r'<span class="s[12abde]?">([^<]*)</span>', r"<i>\1</i>"),
    (r'<span class="k[cdnpr]?">([^<]*)</span>', r"<b>\1</b>"), (r"<pre><span></span>", "<pre>"),
    (r'class="cell_input docutils container"', 'class="cell_input"'),
    (r'class="(?:docutils|reference internal) (literal|nav-link)', r'class="\1'),
    (r'(<a class="reference internal" href="[^"]*") title="[^"]*"', r"\1"),  # the title of a name is its address
    (r'<dl>(\s*<dd><em class="sig-param">)', r'<dl role="none">\1'),  # Sphinx's list of parameters has no terms
    (r'(_images/[\w.-]+)\.png"', r'\1.webp"'))]
_WHOLE = r"(<(?P<name>script|style|textarea|pre)\b.*?</(?P=name)>)"
_PART = re.compile(rf"(?s){_WHOLE}|<!--.*?-->|\s*\n\s*|</(?:li|td|th|tr|dt|dd)>|(?P<tag><\w[^<>]*>)")
_QUOTED = re.compile(r'="([\w./#?:;,%&+-]+)"(?=[\s>])')


def _shorter(found):
    """A part of a page without what HTML does not need: comment, indentation, an item's end, a plain value's quotes."""
    if found["name"]:
        return found[0]
    if found["tag"]:
        return _QUOTED.sub(r"=\1", found[0])
    return "\n"[found[0].startswith("<"):]


def _lighter_pages(app, error):
    """Make the pages of this build smaller: markup that is shorter and means the same, pictures as WebP without loss.
    In code strings are <i>, keywords are <b> (pages.css gives them their colours)."""
    for picture in (Path(app.outdir) / "_images").glob("*.png"):
        Image.open(picture).save(picture.with_suffix(".webp"), lossless=True)
        picture.unlink()
    for page in Path(app.outdir).rglob("*.html"):
        if page.stat().st_mtime < _BEGUN:  # of an earlier build
            continue
        text = page.read_text(encoding="utf-8")
        for pattern, short in _SHORTER:
            text = pattern.sub(short, text)
        page.write_text(_PART.sub(_shorter, text), encoding="utf-8")


def setup(app):
    app.connect("html-page-context", _light_contents, priority=900)  # after the theme
    app.connect("build-finished", _without_spare_files)
    app.connect("build-finished", _lighter_pages)
    app.connect("doctree-read", _own_types)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
