"""Flickr30k Entities: the parsers against real files and published records, and folders broken in every way."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.flickr30k.entities import OFFICIAL_SPLITS, Flickr30kEntities
from qgcam_lib.data.flickr30k.format import (
    Phrase,
    parse_annotation,
    parse_sentence,
    read_sentences,
    read_split,
    read_unrelated,
)
from qgcam_lib.data.records import Dataset, open_image
from qgcam_lib.errors import ExampleError, FileFault, FormatError

SHARED = Path(__file__).parents[1] / ".." / "shared" / "realdata"
ENTITIES, PHOTOS = SHARED / "flickr30k_entities", SHARED / "photos"
needs_entities = pytest.mark.skipif(
    not ENTITIES.is_dir(), reason="no real Flickr30k Entities files (../shared/realdata)"
)
needs_photos = pytest.mark.skipif(not PHOTOS.is_dir(), reason="no real photographs (../shared/realdata/photos)")


# -- a folder to break


def bndbox(xmin, ymin, xmax, ymax):
    values = zip(("xmin", "ymin", "xmax", "ymax"), (xmin, ymin, xmax, ymax))
    return "<bndbox>" + "".join(f"<{tag}>{value}</{tag}>" for tag, value in values) + "</bndbox>"


def annotation(objects, width=80, height=60):
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    rows = "".join(
        f"<object>{''.join(f'<name>{n}</name>' for n in names.split())}{rest}</object>" for names, rest in objects
    )
    return f"<annotation><filename>x.jpg</filename>{size}{rows}</annotation>"


GOOD = annotation(
    [
        ("1 3", bndbox(1, 1, 40, 60)),
        ("2 3", bndbox(41, 11, 80, 50)),
        ("4", "<scene>1</scene><nobndbox>0</nobndbox>"),
        ("5", "<scene>0</scene><nobndbox>1</nobndbox>"),
    ]
)
LINES = [
    "[/EN#1/people A man] and [/EN#2/people/animals a dog] in [/EN#4/scene the park] with [/EN#5/other music] .",
    "[/EN#3/people They] see [/EN#0/notvisual it] .",
    "[/EN#1/people a man] stands .",
]


def add_image(root, image_id, lines=LINES, xml=GOOD, size=(80, 60)):
    for name in ("Sentences", "Annotations", "images"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "Sentences" / f"{image_id}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "Annotations" / f"{image_id}.xml").write_text(xml)
    pixels = np.random.default_rng(int(image_id)).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "images" / f"{image_id}.jpg")
    with (root / "test.txt").open("a") as split:
        split.write(f"{image_id}\n")


@pytest.fixture
def root(tmp_path):
    for image_id in ("11", "12", "13"):
        add_image(tmp_path / "data", image_id)
    return tmp_path / "data"


ALL = ["0/0", "0/1", "1/0", "2/0"]


def ids(*images):
    return [f"{image}/{rest}" for image in images for rest in ALL]


def mark_sentence(sentence, phrases):
    """The marked line, the other way round than `parse_sentence`."""
    opening, closing = {}, dict.fromkeys(range(len(sentence) + 1), 0)
    for one in phrases:
        opening.setdefault(one.start, []).append(f"[/EN#{one.entity}/{'/'.join(one.types)} ")
        closing[one.end] += 1
    return "".join("]" * closing[i] + "".join(opening.get(i, ())) + sentence[i:i + 1] for i in range(len(sentence) + 1))


# -- the real files


@needs_entities
def test_every_real_sentence_file_parses_and_comes_back():
    files = sorted((ENTITIES / "Sentences").glob("*.txt")) + sorted(
        (ENTITIES / "reconstructed/Sentences").glob("*.txt")
    )
    assert len(files) == 10
    lines = [line for path in files for line in read_sentences(path)]
    assert len(lines) == 47
    for line in lines:
        sentence, phrases = parse_sentence(line)
        assert all(sentence[p.start : p.end] == p.text for p in phrases)
        assert len(phrases) == line.count("[/EN#")
        assert mark_sentence(sentence, phrases) == " ".join(line.split())


@needs_entities
def test_a_phrase_with_two_types_and_one_that_is_not_visible():
    lines = read_sentences(ENTITIES / "Sentences" / "65567.txt")
    arm = parse_sentence(lines[3])[1][1]
    assert (arm.text, arm.entity, arm.types) == ("a man 's arm", "255545", ("bodyparts", "people"))
    lines = read_sentences(ENTITIES / "Sentences" / "134206.txt")
    assert parse_sentence(lines[0])[1][2] == Phrase("many people", "9239", ("people",), 66, 77)


@needs_entities
@pytest.mark.parametrize("name", ["test", "test_rc", "train"])
def test_phrases_and_boxes_equal_the_published_records(name):
    """The records' boxes are the XML's numbers minus 1: inclusive corners counted from 0. Half-open ends are one more.

    The XML files of these two pictures were rebuilt from the records, so this pins the conversion; phrases, spans and
    entities come from independent text.
    """
    dataset = Flickr30kEntities(ENTITIES / "reconstructed", split="all")
    records = json.loads((ENTITIES / f"processed_examples_{name}.json").read_text())
    assert records
    for record in records:
        examples = [e for e in dataset if e.group == str(record["image_id"])]
        assert {e.size for e in examples} == {(record["image_size"][1], record["image_size"][0])}
        for sentence in record["annotations"]:
            ours = [e for e in examples if e.meta["sentence"] == sentence["caption"]]
            assert len(ours) == len(sentence["entities"])
            for e, published in zip(ours, sentence["entities"]):
                assert e.prompt == published["noun_chunk"]
                assert (e.meta["start"], e.meta["end"]) == (published["start_idx"], published["end_idx"])
                assert e.meta["entity"] == published["box_id"] and e.meta["types"] == published["entity_tag"]
                inclusive = np.array(record["boxes"][published["box_id"]], float)
                np.testing.assert_array_equal(e.boxes, inclusive + [0, 0, 1, 1])


@needs_entities
def test_a_box_over_the_whole_picture_is_the_whole_picture():
    found = Flickr30kEntities(ENTITIES / "reconstructed", split="all").example("1016887272/0/1")
    assert found.prompt == "the rock" and found.size == (500, 333)
    assert found.boxes.tolist() == [[0, 53, 333, 500]]


@needs_entities
def test_union_is_the_smallest_box_around_all():
    listed, merged = (
        Flickr30kEntities(ENTITIES / "reconstructed", "all", boxes)["1016887272/0/0"] for boxes in ("list", "union")
    )
    assert len(listed.boxes) == 7 and merged.meta["n_boxes_listed"] == 7
    assert merged.boxes.tolist() == [[*listed.boxes[:, :2].min(0), *listed.boxes[:, 2:].max(0)]]


@needs_entities
def test_official_lists_are_recognised():
    import hashlib

    for split, count in (("test", 1000), ("val", 1000), ("train", 29783)):
        found = read_split(ENTITIES / f"{split}.txt")
        key = hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]
        assert OFFICIAL_SPLITS[key]["split"] == split and OFFICIAL_SPLITS[key]["images"] == count == len(found)


@needs_entities
def test_unrelated_captions_count_from_zero():
    found = read_unrelated(ENTITIES / "UNRELATED_CAPTIONS")
    assert len(found) == 21 and ("180753784", 2) in found and ("4671832284", 0) in found


@needs_photos
def test_six_photographs_with_23_phrases():
    dataset = load_dataset(PHOTOS)
    assert isinstance(dataset, Dataset) and not dataset.is_miniworld
    assert len(dataset) == 23 and dataset.describe()["boxes_per_phrase"] == {1: 22, 2: 1}
    assert len(dataset.images()) == 6 and len(verify_dataset(PHOTOS)) == 0
    for example in dataset:
        assert open_image(example.image, example.size).size == example.size[::-1]
    towels = dataset.example("324266/0/2")
    assert towels.prompt == "two hanging towels" and len(towels.boxes) == 2
    assert dataset.example("324266/0/1").boxes[0, 2] == 640  # the mirror touches the right border


# -- markup: round trips and refusals

words = st.text(st.characters(blacklist_categories=("Z", "C"), blacklist_characters="[]/"), min_size=1, max_size=6)
spaced = st.lists(words, min_size=1, max_size=4).map(" ".join)
marked_types = st.lists(st.sampled_from(["people", "other", "scene", "bodyparts", "notvisual"]), min_size=1, max_size=3)


@st.composite
def markup(draw, depth=2):
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if depth and draw(st.booleans()):
            inner = draw(markup(depth=depth - 1))
            parts.append(f"[/EN#{draw(st.integers(0, 10**6))}/{'/'.join(draw(marked_types))} {inner}]")
        else:
            parts.append(draw(spaced))
    return " ".join(parts)


@settings(deadline=None)
@given(markup())
def test_a_parsed_line_is_written_back_the_same(line):
    sentence, phrases = parse_sentence(line)
    assert mark_sentence(sentence, phrases) == line
    assert parse_sentence(mark_sentence(sentence, phrases)) == (sentence, phrases)
    assert all(sentence[p.start : p.end] == p.text for p in phrases)
    assert "[/EN#" not in sentence


@settings(deadline=None)
@given(markup(), st.data())
def test_spacing_of_the_markup_changes_nothing(line, data):
    wide = "  " + line.replace(" ", data.draw(st.sampled_from(["  ", "\t", " \t "]))) + " \r"
    assert parse_sentence(wide) == parse_sentence(line)


@settings(deadline=None)
@given(markup(), st.integers(0, 200))
def test_a_lost_bracket_is_noticed(line, where):
    brackets = [i for i, letter in enumerate(line) if letter == "]"]
    assume(brackets)
    at = brackets[where % len(brackets)]
    with pytest.raises(FormatError):
        parse_sentence(line[:at] + line[at + 1 :])


def test_plain_brackets_are_text():
    sentence, phrases = parse_sentence("[/EN#1/other a sign [ red ] ] reads [ stop ] .")
    assert sentence == "a sign [ red ] reads [ stop ] ." and [p.text for p in phrases] == ["a sign [ red ]"]


@pytest.mark.parametrize("line", [
    "[/EN#1/people A man walks", "A man] walks", "[/EN#1/people ] walks", "[/EN#1 A man] walks", "[/EN#/people A man]"])
def test_broken_markup_is_refused(line):
    with pytest.raises(FormatError):
        parse_sentence(line)


# -- annotations


def test_names_flags_and_half_open_boxes():
    found = parse_annotation(GOOD)
    assert found.size == (60, 80) and found.clipped == 0 and found.broken == {}
    assert {name: boxes.tolist() for name, boxes in found.boxes.items()} == {
        "1": [[0, 0, 40, 60]],
        "2": [[40, 10, 80, 50]],
        "3": [[0, 0, 40, 60], [40, 10, 80, 50]],
    }
    assert found.scenes == {"4"} and found.boxless == {"5"}


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(1, 60), st.data())
def test_a_box_covers_as_many_pixels_as_its_inclusive_corners_say(xmin, ymin, data):
    xmax, ymax = data.draw(st.integers(xmin, 80)), data.draw(st.integers(ymin, 60))
    ((x0, y0, x1, y1),) = parse_annotation(annotation([("1", bndbox(xmin, ymin, xmax, ymax))])).boxes["1"]
    assert (x1 - x0, y1 - y0) == (xmax - xmin + 1, ymax - ymin + 1)
    assert 0 <= x0 < x1 <= 80 and 0 <= y0 < y1 <= 60


@pytest.mark.parametrize("box", [(41, 1, 40, 60), (1, 61, 10, 90), (-9, 1, 0, 60), ("", 1, 12, 60), ("ten", 1, 12, 60),
                                 ("nan", 1, 12, 60)])
def test_a_bad_box_spoils_its_entities_only(box):
    found = parse_annotation(annotation([("1 3", bndbox(*box)), ("3", bndbox(1, 1, 5, 5)), ("2", bndbox(1, 1, 9, 9))]))
    assert set(found.boxes) == {"2"} and set(found.broken) == {"1", "3"}


@pytest.mark.parametrize(
    "box, expected",
    [((0, 0, 80, 60), [0, 0, 80, 60]), ((71, 51, 85, 70), [70, 50, 80, 60]), ((-5, -5, 10, 10), [0, 0, 10, 10])],
)
def test_a_box_that_sticks_out_is_cut_and_counted(box, expected):
    found = parse_annotation(annotation([("1", bndbox(*box))]))
    assert found.boxes["1"].tolist() == [expected] and found.clipped == 1


BOMB = (
    '<!DOCTYPE bomb [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]>'
    "<annotation>&c;</annotation>"
)
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>'


@pytest.mark.parametrize("text, words", [
    (BOMB, "EntitiesForbidden"), (OUTSIDE, "EntitiesForbidden"), (GOOD.replace("x.jpg", "&who;"), "undefined entity"),
    (GOOD[:-30], "no XML"), ("<a/>", "annotation"), ("<annotation/>", "size"),
    (GOOD.replace("<width>80", "<width>0"), "width"), (GOOD.replace("<name>4</name>", ""), "name")])
def test_an_annotation_that_cannot_be_trusted_is_refused(text, words):
    with pytest.raises(FileFault, match=words):
        parse_annotation(text)


# -- the loader


def test_which_phrases_become_examples(root):
    dataset = Flickr30kEntities(root)
    assert [e.id for e in dataset] == ids("11", "12", "13") and len(dataset) == 12
    card = dataset.describe()
    assert card["phrases"] == 21 and card["sentences"] == 9 and card["official"] is None
    assert card["skipped"] == {"nobndbox": 3, "notvisual": 3, "scene": 3}
    assert card["types"] == {"people": 12, "animals": 3} and card["boxes_per_phrase"] == {1: 9, 2: 3}
    json.dumps(card)


def test_an_example_knows_its_place(root):
    found = Flickr30kEntities(root).example("12/0/1")
    assert (found.prompt, found.group, found.category, found.size) == ("a dog", "12", "people", (60, 80))
    assert found.image == root / "images" / "12.jpg" and found.boxes.tolist() == [[40, 10, 80, 50]]
    assert found.meta == {
        "entity": "2",
        "types": ["people", "animals"],
        "sentence": "A man and a dog in the park with music .",
        "sentence_number": 0,
        "phrase_number": 1,
        "start": 10,
        "end": 15,
        "n_boxes_listed": 1,
    }


def test_a_union_is_one_box(root):
    (merged,) = Flickr30kEntities(root, boxes="union")["11/1/0"].boxes.tolist()
    assert merged == [0, 0, 80, 60]
    with pytest.raises(ValueError, match="boxes: expected one of 'list', 'union', got 'merged'"):
        Flickr30kEntities(root, boxes="merged")


def test_unrelated_sentences(root):
    (root / "UNRELATED_CAPTIONS").write_text("# format: <imageID> <sentence number>\n11 4")
    (root / "Sentences" / "11.txt").write_text(
        "\n".join([*LINES, "[/EN#77/people A queen] greets [/EN#1/people a man] ."])
    )
    dataset = Flickr30kEntities(root)
    assert [e.id for e in dataset][:5] == [*ids("11"), "11/3/1"] and dataset.describe()["skipped"]["unrelated"] == 1


def test_nested_phrases_each_have_their_own_boxes(root):
    (root / "Sentences" / "11.txt").write_text("[/EN#3/people They and [/EN#2/animals the dog]] rest .")
    outer, inner = (Flickr30kEntities(root)[id] for id in ("11/0/0", "11/0/1"))
    assert (outer.prompt, inner.prompt) == ("They and the dog", "the dog")
    assert len(outer.boxes) == 2 and inner.boxes.tolist() == [outer.boxes[1].tolist()]


@pytest.mark.parametrize(
    "folder, suffix", [("images", ".JPG"), ("flickr30k-images", ".jpeg"), ("flickr30k_images", ".png"), ("", ".jpg")]
)
def test_pictures_are_found_where_people_put_them(root, folder, suffix):
    for path in sorted((root / "images").iterdir()):
        (root / folder).mkdir(exist_ok=True)
        Image.open(path).save(root / folder / f"{path.stem}{suffix}", format="PNG" if suffix == ".png" else "JPEG")
        path.unlink()
    if folder != "images":
        (root / "images").rmdir()
    dataset = Flickr30kEntities(root)
    assert all(open_image(e.image, e.size) for e in dataset) and len(dataset.verify()) == 0


def test_pictures_in_another_folder(root, tmp_path):
    (root / "images").rename(tmp_path / "elsewhere")
    assert len(Flickr30kEntities(root, images=tmp_path / "elsewhere").verify()) == 0
    assert Flickr30kEntities(root).verify().problem.tolist() == ["the picture is missing"] * 3
    with pytest.raises(ExampleError, match="images: expected an existing folder"):
        Flickr30kEntities(root, images=tmp_path / "nowhere")


def test_fingerprint_follows_content_not_place(root, tmp_path):
    first = Flickr30kEntities(root).fingerprint()
    assert Flickr30kEntities(root, on_error="record").fingerprint() == first
    assert Flickr30kEntities(root, boxes="union").fingerprint() != first
    moved = root.rename(tmp_path / "moved")
    assert Flickr30kEntities(moved).fingerprint() == first
    (moved / "Annotations" / "13.xml").write_text(GOOD.replace("80", "81"))
    assert Flickr30kEntities(moved).fingerprint() != first


def test_files_are_read_when_they_are_needed(tmp_path, monkeypatch):
    """The first example waits for its own files only; counting reads each annotation once, and no picture."""
    from qgcam_lib.data.flickr30k import entities as flickr30k

    texts = (("Sentences", "txt", "\n".join(LINES)), ("Annotations", "xml", GOOD), ("images", "jpg", "not a picture"))
    for folder, suffix, text in texts:
        (tmp_path / folder).mkdir()
        for image_id in range(100):
            (tmp_path / folder / f"{image_id}.{suffix}").write_text(text)
    (tmp_path / "test.txt").write_text("\n".join(map(str, range(100))))
    read = []
    monkeypatch.setattr(flickr30k, "parse_annotation", lambda text: read.append(text) or parse_annotation(text))
    dataset = Flickr30kEntities(tmp_path)
    assert len(read) == 0 and len(dataset.images()) == 100
    assert next(iter(dataset)).id == "0/0/0" and dataset.example("57/1/0").prompt == "They" and len(read) == 2
    assert len(dataset) == 400 == len(list(dataset)) and len(read) == 100


# -- broken folders


XML, TEXT = "Annotations/12.xml", "Sentences/12.txt"
DAMAGE = {  # file of image 12, what is in it then, examples that are lost
    "annotation missing": (XML, None, ids("12")),
    "sentences missing": (TEXT, None, ids("12")),
    "bomb": (XML, BOMB, ids("12")),
    "unknown entity": (XML, GOOD.replace("<name>2</name>", "<name>222</name>"), ["12/0/1"]),
    "inverted box": (XML, GOOD.replace("<xmax>80", "<xmax>8"), ["12/0/1", "12/1/0"]),
    "open bracket": (TEXT, "\n".join([LINES[0], LINES[1].replace("]", "", 1), LINES[2]]), ["12/1/0"]),
    "not utf-8": (TEXT, "[/EN#1/people Der Mann] fröstelt".encode("latin-1"), ids("12")),
}


def test_the_data_card_counts_each_image_once_in_any_order(root, monkeypatch):
    reads = []
    read = Flickr30kEntities._read
    monkeypatch.setattr(Flickr30kEntities, "_read", lambda self, id: reads.append(id) or read(self, id))
    forward, backward = (Flickr30kEntities(root, on_error="record") for _ in range(2))
    card = forward.describe()
    for id in reversed(backward.images()):
        backward.read_image(id)
    assert backward.describe() == card
    assert list(backward.describe()["types"]) == list(card["types"])
    assert sorted(reads) == sorted(2 * forward.images())


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_broken_file_is_named_and_the_rest_goes_on(root, kind):
    name, content, lost = DAMAGE[kind]
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    patient = Flickr30kEntities(root, on_error="record")
    assert [e.id for e in patient] == [id for id in ids("11", "12", "13") if id not in lost]
    assert len(patient) == 12 - len(lost) and {p.file for p in patient.problems} == {name}
    table = patient.verify()
    assert set(table.file) == {name} and set(table.severity) == {"error"}
    strict = Flickr30kEntities(root)
    for ask in (list, lambda data: data.example(lost[0])):
        with pytest.raises(ExampleError, match=name):
            ask(strict)
    assert strict.example("11/0/0").prompt == "A man"


def test_verify_looks_into_every_picture(root):
    whole = (root / "images/11.jpg").read_bytes()
    (root / "images/11.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "images/12.jpg").write_text("not a picture")
    Image.new("RGB", (40, 30)).save(root / "images/13.jpg")
    table = verify_dataset(root)
    found = dict(zip(table.file, table.problem))
    assert list(found) == ["images/11.jpg", "images/12.jpg", "images/13.jpg"]
    assert "cannot be decoded whole" in found["images/11.jpg"] and "not a picture" in found["images/12.jpg"]
    assert "40 x 30 pixels, the annotation says 80 x 60" in found["images/13.jpg"]
    assert len(Flickr30kEntities(root)) == 12, "pictures are not opened to list examples"


def test_boxes_that_stick_out_are_a_note(root):
    (root / "Annotations/11.xml").write_text(GOOD.replace("<xmax>80", "<xmax>99"))
    table = Flickr30kEntities(root).verify()
    assert table.severity.tolist() == ["note"] and "1 boxes extend beyond" in table.problem[0]


def test_another_layout_is_told_what_was_expected_and_found(root, tmp_path):
    assert recognise(root) == "Flickr30k Entities" and recognise(tmp_path) is None
    for folder in (tmp_path, root / "images"):
        with pytest.raises(ExampleError):
            load_dataset(folder)
    with pytest.raises(ExampleError, match="no such folder"):
        load_dataset(tmp_path / "nowhere")
    with pytest.raises(ExampleError, match="the folder has lists for: test"):
        load_dataset(root, "val")
    with pytest.raises(ExampleError, match="no known layout"):
        verify_dataset(root / "images")
