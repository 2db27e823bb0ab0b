"""Every example of `qgcam formats` is read by the command that it is an example for; the page is what is printed."""

import json
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.cli.data import FORMATS, PAGE
from qgcam_lib.cli.main import main


@pytest.mark.parametrize("command", dict.fromkeys(one["command"] for one in FORMATS.values()))
def test_examples_are_read(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for one in FORMATS.values():
        if one["example"]:
            Path(one["file"]).write_text(one["example"])
    np.savez("maps.npz", a=np.eye(8), b=np.ones((8, 8)))
    assert main(command.split()[1:]) == 0


def test_the_page_and_its_sections_are_printed(capsys):
    assert PAGE.count("\n## ") == len(FORMATS) and sum(len(one[0]) for one in FORMATS.values()) > 0.9 * len(PAGE)
    assert main(["formats"]) == 0 and capsys.readouterr().out == PAGE
    assert main(["formats", "groups", "--json"]) == 0
    assert json.loads(json.loads(capsys.readouterr().out)[0]["example"])[0]["img1_id"] == 42
    assert main(["formats", "group"]) == 2
