"""GQA: the official files, GQA-Rel and its classes, and the miniworld's questions, answered from the scene graphs."""

import json
from collections import Counter

import pytest

from qgcam_lib.data.gqa import Classes, Gqa, Operation, Question, gqa_rel, scene_graphs
from qgcam_lib.errors import ExampleError
from qgcam_lib.miniworld import ensure_gqa, ensure_refcocog
from qgcam_lib.miniworld.scenes.crowd import make_doubles
from qgcam_lib.miniworld.scenes.scene import ANIMALS, KINDS, PEOPLE
from qgcam_lib.miniworld.words.listener import Listener
from qgcam_lib.miniworld.writers.gqa import questions

SEED = 2026


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure_gqa(tmp_path_factory.mktemp("gqa") / "w", n_train=40, n_val=12, n_testdev=4, progress=False)


def entry(**changes):
    """A question as the official files have it (07333408 of val, shortened)."""
    return {"semantic": [{"operation": "select", "dependencies": [], "argument": "wall (722332)"},
                         {"operation": "filter color", "dependencies": [0], "argument": "white"},
                         {"operation": "relate", "dependencies": [1], "argument": "_,on,s (722335)"},
                         {"operation": "query", "dependencies": [2], "argument": "name"}],
            "entailed": ["07333405"], "equivalent": ["07333408"], "question": "What is on the white wall?",
            "imageId": "2375429", "isBalanced": True, "groups": {"global": "", "local": "14-wall_on,s"},
            "answer": "pipe", "semanticStr": "select: wall (722332)->filter color: white [0]",
            "annotations": {"answer": {"0": "722335"}, "question": {"4:6": "722332"}, "fullAnswer": {"1": "722335"}},
            "types": {"detailed": "relS", "semantic": "rel", "structural": "query"},
            "fullAnswer": "The pipe is on the wall.", **changes}


def written(folder, questions, name="val_balanced_questions.json"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(questions))
    return folder


# ---------------------------------------------------------------- the official form


def test_an_official_entry_is_read_field_by_field(tmp_path):
    other = entry(types={"detailed": "directOf", "semantic": "attr", "structural": "query"}, answer="white",
                  isBalanced=False, groups={"global": None, "local": None})
    root = written(tmp_path, {"07333408": entry(), "15736264": other})
    first, second = Gqa(root, "val")
    program = (Operation("select", "wall (722332)"), Operation("filter color", "white", (0,)),
               Operation("relate", "_,on,s (722335)", (1,)), Operation("query", "name", (2,)))
    assert first == Question("07333408", "2375429", "What is on the white wall?", "pipe", "The pipe is on the wall.",
                             "query", "rel", "relS", True, program)
    assert (second.answer, second.balanced) == ("white", False)
    assert [q.id for q in gqa_rel(root, "val", balanced=True)] == ["07333408"] and len(Gqa(root, "val")) == 2
    assert Gqa(root, "val").picture(first) == root / "images" / "2375429.jpg"


def test_all_questions_of_train_are_a_folder_in_the_order_of_its_numbers(tmp_path):
    for k in (0, 1, 2, 10):
        written(tmp_path, {str(k): entry()}, f"questions/train_all_questions/train_all_questions_{k}.json")
    rel = gqa_rel(tmp_path, "train")
    assert [q.id for q in rel] == ["0", "1", "2", "10"] and [p.name[-7:] for p in rel.files][-1] == "10.json"


def test_test_splits_have_questions_only(tmp_path):
    plain = {"question": "What is that?", "imageId": "n1", "isBalanced": True}
    written(tmp_path, {"1": plain}, "test_balanced_questions.json")
    question, = Gqa(tmp_path, "test")
    assert (question.answer, question.semantic, question.program) == ("", "", ())
    for asked in (Gqa(tmp_path, "test"), []):
        with pytest.raises(ExampleError, match="no answer|no questions"):
            Classes(asked)


@pytest.mark.parametrize("wrong, field", [
    ({"answer": ""}, "answer"), ({"question": None}, "question"), ({"imageId": "../7"}, "imageId"),
    ({"types": {"semantic": "rel"}}, "types.structural"), ({"semantic": ["select"]}, "semantic.0")])
def test_a_fault_names_file_question_and_field(tmp_path, wrong, field):
    written(tmp_path, {"17": entry(**wrong)})
    with pytest.raises(ExampleError, match=f"question 17, .*val_balanced_questions.json: field '{field}'"):
        list(Gqa(tmp_path, "val"))


def test_classes_are_numbered_by_how_often_they_are_answers():
    asked = [Question(str(k), "1", "?", answer) for k, answer in enumerate(["no", "yes", "dog", "yes", "cat"])]
    classes = Classes(asked)
    assert classes.names == ["yes", "cat", "dog", "no"] and classes.counts["yes"] == 2 and len(classes) == 4


# ---------------------------------------------------------------- the miniworld's questions, answered anew


def fits(name, noun):
    known = {"person": PEOPLE, "animal": ANIMALS, "object": tuple(KINDS)}
    return noun == name or noun in known.get(name, ()) or (noun in KINDS and KINDS[noun].category in (name, name + "s"))


def run(program, graph):
    """The literal answer of a program on a scene graph: every object is looked at in every step."""
    objects, results = graph["objects"], []
    related = {(a, r["name"], r["object"]) for a, o in objects.items() for r in o["relations"]}
    for step in program:
        known = [results[k] for k in step.dependencies]
        argument = step.argument.rpartition(" (")[0] or step.argument
        if step.operation == "select":
            results.append({k for k, o in objects.items() if o["name"] == argument})
        elif step.operation.startswith("filter"):
            results.append({k for k in known[0] if argument in objects[k]["attributes"]})
        elif step.operation in ("relate", "verify rel"):
            name, relation, side = argument.split(",")
            found = {k for k, o in objects.items() if fits(name, o["name"]) and any(
                ((k, relation, other) if side == "s" else (other, relation, k)) in related for other in known[0])}
            results.append(found if step.operation == "relate" else "yes" if found else "no")
        elif step.operation == "exist":
            results.append("yes" if known[0] else "no")
        elif step.operation == "verify color":
            one, = known[0]
            results.append("yes" if argument in objects[one]["attributes"] else "no")
        elif step.operation == "choose rel":
            (other,), (one,) = known
            sides = [side for side in argument.split(",")[1].split("|") if (one, side, other) in related]
            results.append(sides[0].split()[2] if len(sides) == 1 else None)
        elif step.operation == "query":
            one, = known[0]
            results.append(objects[one]["name"] if argument == "name" else objects[one]["colour"])
    return results[-1]


def test_every_answer_follows_from_the_scene_graph(root):
    seen = Counter()
    for split in ("train", "val"):
        graphs = dict(scene_graphs(root, split))
        for graph in graphs.values():
            for thing in graph["objects"].values():
                thing["colour"] = next((a for a in thing["attributes"] if a in gqa_colours()), "")
        for question in Gqa(root, split, balanced=False):
            assert run(question.program, graphs[question.image]) == question.answer, question
            assert question.answer in question.full_answer.lower().replace(",", "").replace(".", "").split()
            seen[question.semantic, question.detailed] += 1
    assert {kind for kind, _ in seen} == {"rel", "attr", "obj"} and len(seen) == 7
    assert sum(n for (kind, _), n in seen.items() if kind == "rel") > .6 * sum(seen.values())


def gqa_colours():
    return {colour for kind in KINDS.values() for colour in kind.colours}


def test_a_no_is_not_even_possible():
    found = 0
    for k in range(30):
        scene = make_doubles(k, "train", seed=SEED).scene
        for one in questions(scene):
            if one["types"]["detailed"] == "verifyRel" and one["answer"] == "no":
                words = one["question"].lower().removeprefix("is ").removesuffix("?").removeprefix("the ")
                found += 1
                assert not Listener(scene).hear(f"the {words}").possible, one["question"]
    assert found > 10


def test_the_balanced_part_has_as_many_yes_as_no(root):
    for split in ("train", "val"):
        balanced, every = list(Gqa(root, split)), list(Gqa(root, split, balanced=False))
        assert {q.id for q in balanced} == {q.id for q in every if q.balanced}
        assert len({q.id for q in every}) == len(every)
        counts = Counter((q.detailed, q.answer) for q in balanced)
        assert all(counts[kind, "yes"] == counts[kind, "no"] for kind in ("verifyRel", "verifyAttr", "exist"))
        for image in {q.image for q in every}:
            texts = [q.text for q in every if q.image == image]
            assert len(texts) == len(set(texts)) <= 6


def test_same_seed_same_bytes_and_the_pictures_of_refcocog(root, tmp_path):
    again = ensure_gqa(tmp_path / "w", n_train=40, n_val=12, n_testdev=4, progress=False)
    files = [p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.name != ".lock"]
    assert len(files) == 40 + 12 + 4 + 9 and all((root / p).read_bytes() == (again / p).read_bytes() for p in files)
    other = ensure_refcocog(tmp_path / "r", n_train=2, n_val=1, n_test=1, progress=False) / "images"
    for name in (500_000, 500_001, 600_000, 700_000):
        assert (root / f"images/{name}.jpg").read_bytes() == (other / f"COCO_train2014_{name:012d}.jpg").read_bytes()
