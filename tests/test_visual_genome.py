"""Visual Genome's files: entry by entry, in both forms of names, with faults named by file, picture and field."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.visual_genome.annotations import (
    read_aliases,
    read_entries,
    read_images,
    read_presence,
    read_regions,
    read_triplets,
)
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.errors import ExampleError, FormatError

values = st.recursive(st.one_of(st.integers(), st.text('a"\\]},é', max_size=5), st.none()),
                      lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=2), one, max_size=3))


@settings(max_examples=60, deadline=None)
@given(entries=st.lists(st.dictionaries(st.text(max_size=3), values, max_size=3), max_size=5),
       indent=st.sampled_from([None, 0, 2]))
def test_entries_are_those_of_a_json_reader(entries, indent, tmp_path_factory):
    path = tmp_path_factory.mktemp("entries") / "e.json"
    path.write_text(json.dumps(entries, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert list(read_entries(path)) == list(enumerate(entries))


@settings(max_examples=60, deadline=None)
@given(entries=st.dictionaries(st.text(max_size=3), values, max_size=5), indent=st.sampled_from([None, 0, 2]))
def test_entries_of_an_object_come_with_their_keys(entries, indent, tmp_path_factory):
    path = tmp_path_factory.mktemp("entries") / "e.json"
    path.write_text(json.dumps(entries, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert dict(read_entries(path, "{}")) == entries
    path.write_text('{"a": 1, "a": 2}')
    with pytest.raises(FormatError, match="twice"):
        list(read_entries(path, "{}"))


@settings(max_examples=60, deadline=None)
@given(text=st.text('[]{},:"a1 ', max_size=14))
def test_what_is_no_list_is_refused(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("entries") / "e.json"
    path.write_text(text)
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, list):
        assert list(read_entries(path)) == list(enumerate(whole))
    else:
        with pytest.raises(FormatError, match="e.json"):
            list(read_entries(path))


def thing(name, form="name"):
    return {"object_id": 1, "x": 0, "y": 0, "w": 1, "h": 1, form: name, "synsets": []}


def folder(root, relations, images=(1, 2, 3), **more):
    url = "https://cs.stanford.edu/people/rak248/VG_100K_2/{}.jpg"
    content = {"image_data": [{"image_id": k, "url": url.format(k), "width": 5, "height": 4, "coco_id": 7 * k}
                              for k in images],
               "relationships": [{"image_id": k, "relationships": rows} for k, rows in relations.items()], **more}
    root.mkdir(exist_ok=True)
    for name, value in content.items():
        (root / f"{name}.json").write_text(json.dumps(value))
    return root


def test_both_forms_of_names_and_any_case(tmp_path):
    rows = [{"predicate": " Standing  ON", "subject": thing("Man"), "object": thing(["horse", "pony"], "names")},
            {"predicate": "on", "subject": thing([], "names"), "object": thing("grass")}]
    genome = VisualGenome(folder(tmp_path / "vg", {1: rows, 2: []}))
    assert genome.triplets.frame().values.tolist() == [[1, "man", "standing on", "horse"]]
    assert genome.triplets.images.tolist() == [1, 2] and genome.triplets.names == ["man", "horse"]
    assert genome.triplets.left_out == {"relation with an empty name or predicate": 1}
    assert (genome.images[2].folder, genome.images[2].file, genome.images[2].coco) == ("VG_100K_2", "2.jpg", 14)
    assert genome.picture(2) == genome.root / "VG_100K_2/2.jpg" and len(genome) == 3
    path = tmp_path / "objects.json"
    path.write_text(json.dumps([{"id": 4, "objects": [thing(["Cat", "pet"], "names"), thing("dog"), thing("")]}]))
    found = read_presence(path)
    assert [(int(k), found.names[n]) for k, n in zip(found.image, found.name)] == [(4, "cat"), (4, "pet"), (4, "dog")]


@pytest.mark.parametrize("entry,said", [
    ({"relationships": []}, "field 'image_id'"), ({"image_id": "1", "relationships": []}, "field 'image_id'"),
    ({"image_id": 5}, "field 'relationships'"),
    ({"image_id": 5, "relationships": [{"predicate": 1}]}, "field 'relationships.0.predicate'"),
    ({"image_id": 5, "relationships": [{"predicate": "on", "subject": {}, "object": {}}]},
     "field 'relationships.0.subject.name'")])
def test_a_fault_names_file_entry_and_field(entry, said, tmp_path):
    (tmp_path / "relationships.json").write_text(json.dumps([entry]))
    with pytest.raises(ExampleError, match=f"entry 0, .*relationships.json: {said}"):
        read_triplets(tmp_path / "relationships.json")


def test_faults_of_the_other_files(tmp_path):
    path = tmp_path / "f.json"
    for reader, entry, said in (
            (lambda one: list(read_regions(one)), {"id": 3, "regions": [{"phrase": None}]}, "regions.0.phrase"),
            (read_presence, {"id": 3, "objects": [{"names": 1}]}, "objects.0.names"),
            (read_images, {"image_id": 3, "url": "a/b.jpg", "width": 1}, "height")):
        path.write_text(json.dumps([entry]))
        with pytest.raises(ExampleError, match=f"f.json: field '{said}"):
            reader(path)
    path.write_text(json.dumps([{"image_id": 3, "url": "a/b.jpg", "width": 1, "height": 1}] * 2))
    with pytest.raises(ExampleError, match="image 3 is listed twice"):
        read_images(path)
    path.write_text(json.dumps([{"id": 3, "regions": [{"phrase": " a  dog "}, {"phrase": ""}]}]))
    assert list(read_regions(path)) == [(3, ["a dog"])]
    path.write_text("on,On Top  of,\n\nnear,on\n")
    assert read_aliases(path) == {"on": "on", "on top of": "on", "near": "near"}


def test_missing_pictures_and_annotations_of_unlisted_ones_are_told(tmp_path):
    root = folder(tmp_path / "vg", {1: [], 9: []})
    assert recognise(root) == "Visual Genome"
    assert "no folder of pictures" in " ".join(verify_dataset(root).problem)
    (root / "VG_100K").mkdir()
    (root / "VG_100K" / "1.jpg").touch()
    table = VisualGenome(root).verify()
    wrong = table[table.severity == "error"]
    assert sorted(zip(wrong.file, wrong.id)) == [("VG_100K_2/2.jpg", "2"), ("VG_100K_2/3.jpg", "3"),
                                                 ("relationships.json", "9")]
    assert verify_dataset(root).attrs["counts"] == [{"split": "all", "examples": 3, "expected": 108_077}]
    (root / "relationships.json").write_text("[{}")
    assert "entry 0" in " ".join(VisualGenome(root).verify().problem)
    with pytest.raises(ExampleError, match="no grounding examples"):
        load_dataset(root)
    (root / "image_data.json").unlink()
    with pytest.raises(ExampleError, match="expected a folder with image_data.json"):
        VisualGenome(root)
