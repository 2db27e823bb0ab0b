"""One grammar: an option means the same in every command, all print JSON, errors name flags."""

import json
import re

import pandas as pd
import pytest
import typer
from readme import blocks

from qgcam_lib.cli import calls, scoring
from qgcam_lib.cli.main import app, main
from qgcam_lib.errors import ExampleError

# options that differ between commands, and why
DIFFER = {
    "--split": "each data set has its own splits", "--strict": "of a maintainer's comparison, and of an IoU",
    "--images": "pictures for a builder", "--predictions": "an argument elsewhere", "--expected": "one command",
    "--out": "a folder (evaluate), or a table with one row per record, candidate or score",
    "--ties": "the rules of a score are those that fit it, of one list",
    "--shards": "plan compares several numbers", "--file": "options of evaluate, or parameters of a notebook",
    "--missing": "drop, wrong or undefined: what a task can make of it", "--image-ids": "TRICD's ids and a probe's",
}
RULES = {"expected", "first", "optimistic", "pessimistic", "block"}


def commands(group=None, path=()):
    group = group or typer.main.get_command(app)
    for name, one in group.commands.items():
        yield from commands(one, (*path, name)) if hasattr(one, "commands") else [(" ".join((*path, name)), one)]


def options(command):
    return {one.opts[-1]: one for one in command.params if one.opts[-1].startswith("--")}


def test_an_option_means_the_same_in_every_command_that_has_it():
    found = {}
    for name, command in commands():
        for flag, one in options(command).items():
            kind = (one.name, str(one.type_descriptor.annotation), one.multiple, one.help)
            found.setdefault(flag, {}).setdefault(kind, []).append(name)
    assert {flag: kinds for flag, kinds in found.items() if len(kinds) > 1 and flag not in DIFFER} == {}
    assert not DIFFER.keys() - found.keys()
    single = sorted(names for names in found["--out"].values() if len(names) == 1)
    assert single == [["evaluate"], ["refer splits"], ["tricd evaluate"]] and len(found["--out"]) == 4


def test_rules_for_ties_and_missing_are_of_one_list():
    heads = {"--ties": (scoring.TIES, RULES), "--missing": (scoring.MISSING, {"raise", "drop", "wrong", "undefined"})}
    for _, command in commands():
        for flag, (head, known) in heads.items():
            if one := options(command).get(flag):
                said, _, words = re.sub(r" \((?!equal)[^)]*\)", "", one.help).partition(": ")
                assert said == head and set(words.replace(" or ", ", ").split(", ")) <= known


def test_arguments_of_one_name_mean_the_same():
    found = {}
    for _, command in commands():
        for one in command.params:
            if one.opts[-1] in ("images", "groups", "expressions", "annotations"):
                found.setdefault(one.name, set()).add(one.help.split(",")[0])
    found.pop("annotations")  # of tricd check they may be generated
    assert all(len(helps) == 1 for helps in found.values())


def test_every_command_but_a_training_prints_json():
    assert [name for name, command in commands() if "--json" not in options(command)] == ["zoo"]


@pytest.mark.parametrize("line, key", [
    ("data fetch flickr30k-images --json", "steps"), ("data draw miniworld-ref-adv --json", "folder"),
    ("reference no_such_notebook --json", "holds")])
def test_commands_that_tell_print_json(line, key, capsys, monkeypatch):
    monkeypatch.setattr("qgcam_lib.data.generated.GeneratedRecipe.bring", lambda recipe, progress=True: recipe.folder)
    main(line.split())
    shown = json.loads(capsys.readouterr().out)
    assert key in (shown[0] if isinstance(shown, list) else shown)


def test_messages_name_the_flags_of_their_command():
    params = dict(commands())["score"].params
    for text, shown in [
            ('negatives="relu" makes them 0', "--negatives relu makes them 0"),
            ("pass on_error='record' to go on", "pass --on-error record to go on"),
            ("n_bootstrap=0, by='kind'", "--bootstrap 0, --by kind"),
            ("allow=True, image_ids='number'", "allow=True, image_ids='number'"),  # of other commands
            ("maps=heat.npz, my_by=3, by={...}", "maps=heat.npz, my_by=3, by={...}")]:
        assert calls.with_flags(text, params) == shown
    assert calls.with_flags("allow=True.", dict(commands())["compare"].params) == "--allow."


def test_an_error_and_a_warning_of_a_command_name_its_flags(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks.own_maps(tmp_path)
    monkeypatch.setattr("qgcam_lib.grounding.own_maps.score_files",
                        lambda *a, **k: (_ for _ in ()).throw(ExampleError("bad", "1", "f", "pass on_error='record'")))
    assert main("score maps.safetensors boxes.csv".split()) == 1
    assert "pass --on-error record" in capsys.readouterr().err


def test_by_keeps_the_rows_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks.own_maps(tmp_path)
    boxes = pd.read_csv("boxes.csv")
    boxes.assign(kind=[f"k{n % 2}" for n in range(len(boxes))]).to_csv("kinds.csv", index=False)
    tables = {}
    for line in ("", "--by kind"):
        assert main(f"score maps.safetensors kinds.csv --json --negatives relu {line}".split()) == 0
        tables[line] = pd.DataFrame(json.loads(capsys.readouterr().out)["summary"])
    split = tables["--by kind"]
    assert split["kind"].unique().tolist() == ["all", "k0", "k1"]
    whole = split[split["kind"] == "all"].drop(columns="kind")
    pd.testing.assert_frame_equal(whole.reset_index(drop=True), tables[""][list(whole)], check_dtype=False)


def test_compare_names_what_it_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,group,io_ratio\n1,1,.5\n")
    (tmp_path / "maps.npz").write_bytes(b"x")
    for other, said in (("maps.npz", "table of scores"), ("b.csv", "no such file"), (".", "two tables")):
        assert main(["compare", "a.csv", other]) == 2
        assert said in capsys.readouterr().err or other == "."
