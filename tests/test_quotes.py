"""Every quotation of a paper is that paper's sentence: found word for word in its text, in the section it names."""

import os
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

from qgcam_lib.papers.probes import claims as probes
from qgcam_lib.papers.q_groundcam import claims as q_groundcam
from qgcam_lib.papers.ref_adv import claims as ref_adv
from qgcam_lib.papers.tricd import tables as tricd
from qgcam_lib.settings import ROOT

TEXTS = Path(os.environ.get("PAPER_TEXTS") or ROOT.parent / "shared" / "papers")
PROBES = "Probing Conceptual Understanding of Large Visual-Language Models"
FILES = {"Q-GroundCAM": ("q_groundcam.txt", "q_groundcam_html.txt"), "TRICD": ("tricd.txt",),
         "Ref-Adv": ("ref_adv.txt",), PROBES: ("conceptual_probes.txt",)}
CLAIMS = {"Q-GroundCAM": q_groundcam.CLAIMS, "TRICD": tricd.CLAIMS + tricd.VQA_CLAIMS, PROBES: probes.CLAIMS,
          "Ref-Adv": ref_adv.CLAIMS}
needs_texts = pytest.mark.skipif(not TEXTS.is_dir(), reason="no texts of the papers: ../shared/papers or $PAPER_TEXTS")

# > “Sentence.” — *Paper*, section 4          or, within a line: “sentence” (*Paper*, section 4)
SOURCE = r"\*(?P<paper>[^*]+)\*(?:, (?P<where>[^)\n]+?))?"
BLOCK = re.compile(rf"“(?P<words>[^”]*)”(?: — {SOURCE})?\s*")
INLINE = re.compile(rf"“(?P<words>[^”]*)” \({SOURCE}\)")
HEADING = re.compile(r"(?:#+ )?(?P<number>(?:\d+|[A-H])(?:\.\d+)*|a(?:\.\d+)+)\.?\s+[A-Z][^\t]{2,70}(?<!\.)")
PLACE = re.compile(r"(?:sections? |appendix )?((?:\d+|[A-H])(?:\.\d+)*)|((?:Table|Figure) \d+)'s caption|(abstract)")


class Quotation(NamedTuple):
    place: str
    words: str
    paper: str
    where: str


# ---------------------------------------------------------------- what the papers say


def plain(text):
    """Letters, digits and marks only: no white space, hyphens, typesetting; one form of quotes and dashes."""
    text = re.sub(r"\[([^\]]*)\]\((?:#|https?:)[^)]*\)", r"\1", text)  # the words of a link
    text = re.sub(r"</?(?:sub|sup|i|b)>|\\sim", lambda tag: "~" if tag[0] == "\\sim" else "", text)
    text = unicodedata.normalize("NFKC", text).translate(str.maketrans("“”‘’–—∼", "\"\"''--~"))
    return re.sub(r"[\s$*_{}\\`\-]|\^\d", "", text)


@cache
def parts(file):
    """The text of a paper by place: a section's number, "Table 1", "abstract"; a section holds its subsections."""
    found, current = {}, "abstract"
    for line in (TEXTS / file).read_text(encoding="utf-8").splitlines():
        if heading := HEADING.fullmatch(line.strip()):
            current = heading["number"].upper()  # one text has a.3 for A.3
        if caption := re.match(r"((?:Table|Figure) \d+)[.:] ", line):
            found.setdefault(caption[1], []).append(line)
        levels = current.split(".")
        for depth in range(len(levels)):
            found.setdefault(".".join(levels[: depth + 1]), []).append(line)
    return {name: plain(" ".join(lines)) for name, lines in found.items()}


def problem(quotation):
    """Why a quotation is not one, or ''."""
    if quotation.paper not in FILES:
        return f"no paper named {quotation.paper!r}; known: {', '.join(FILES)}"
    named = re.split(r" and |, ", quotation.where or "")
    places = [match and next(filter(None, match.groups())) for match in map(PLACE.fullmatch, named)]
    if None in places:
        return f"no section that can be looked up: {quotation.where!r}"
    pieces = [plain(piece) for piece in quotation.words.split("[…]") if piece.strip()]
    if not pieces or min(map(len, pieces)) < 8:
        return "hardly a word is quoted"
    for file in FILES[quotation.paper]:
        text = "\n".join(parts(file).get(place, "") for place in places)
        if all(piece in text for piece in pieces):
            return ""
    lost = [p for p in pieces if not any(p in text for file in FILES[quotation.paper] for text in parts(file).values())]
    return f"not in {quotation.where}" + (", nor elsewhere in the paper" if lost else ", but elsewhere in the paper")


# ---------------------------------------------------------------- what we quote


def blockquotes(text):
    """The blockquotes of a Markdown text, each on one line."""
    found = re.findall(r"(?:^>.*(?:\n|$))+", text, flags=re.MULTILINE)
    return [re.sub(r"\s+", " ", re.sub(r"^> ?", "", one, flags=re.MULTILINE)).strip() for one in found]


def quotations(text, place):
    """The quotations of a Markdown text: blockquotes that open with “, and “…” (*Paper*, …) within a line."""
    found = [Quotation(place, m["words"], m["paper"], m["where"]) for m in INLINE.finditer(text)]
    for one in blockquotes(text):
        if one.startswith("“"):
            match = BLOCK.fullmatch(one)
            found.append(Quotation(place, *(match.group("words", "paper", "where") if match else (one, None, None))))
    return found


def markdown():
    """Every Markdown text that may quote: (its place, the text)."""
    pages = [ROOT / name for name in ("README.md", "docs/guide.md", "docs/status.md", "CONTRIBUTING.md")]
    yield from ((page.name, page.read_text(encoding="utf-8")) for page in pages)
    for file in sorted((ROOT / "nbs").rglob("*.ipynb")):
        for cell in nbformat.read(file, 4).cells:
            if cell.cell_type == "markdown":
                yield file.relative_to(ROOT / "nbs").as_posix(), cell.source


def quoted_claims(paper):
    """The sentences of a paper that are counted."""
    return [Quotation(f"CLAIMS: {claim.text}", claim.quote, paper, claim.where) for claim in CLAIMS[paper]]


# ---------------------------------------------------------------- the tests


@needs_texts
def test_every_quotation_on_a_page_is_in_its_paper():
    found = [one for place, text in markdown() for one in quotations(text, place)]
    wrong = [f"{one.place}: “{one.words[:80]}…”: {reason}" for one in found if (reason := problem(one))]
    assert not wrong, "\n".join(wrong)
    assert len(found) >= 20


@needs_texts
@pytest.mark.parametrize("paper", CLAIMS)
def test_every_claim_is_a_sentence_of_its_paper(paper):
    wrong = [f"{one.place}: “{one.words[:80]}…”: {reason}" for one in quoted_claims(paper) if (reason := problem(one))]
    assert not wrong, "\n".join(wrong)


@needs_texts
def test_an_altered_word_a_wrong_section_and_a_missing_one_are_found():
    whole = "> “ALBEF AMC is the second-best in PG Uncertainty, marginally.” — *Q-GroundCAM*, section 4"
    assert not problem(*quotations(whole, "here"))
    for changed in (whole.replace("marginally", "clearly"), whole.replace("section 4", "section 2"),
                    whole.split(", section")[0], whole.replace("Q-GroundCAM", "Another")):
        assert problem(*quotations(changed, "here")), changed
    (one,) = quotations("two tops “with a value of 1.0 each” (*Q-GroundCAM*, section 6) meet", "here")
    assert one.words == "with a value of 1.0 each" and not problem(one)
