"""The reader of JSON: what it gives and what it refuses."""
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qgcam_lib.errors import FormatError
from qgcam_lib.storage.files import parse_json, read_json

plain = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                     | st.text(st.characters(exclude_categories=["Cs"])),
                     lambda inside: st.lists(inside, max_size=4) | st.dictionaries(
                         st.text(st.characters(exclude_categories=["Cs"])), inside, max_size=4), max_leaves=12)


@given(plain, st.booleans(), st.booleans())
def test_what_json_writes_comes_back(value, ascii_only, mark):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text) == value
    assert parse_json(("\ufeff" * mark + text).encode()) == value


@given(st.text(st.sampled_from('[]{}"\\,:0123456789eE+-. nulatrfs')))
def test_any_text_gives_what_json_gives_or_the_error(text):
    """Nothing is taken that json refuses; what is refused besides has one of the reasons that the page names."""
    try:
        found = parse_json(text)
    except FormatError as error:
        assert "not usable as JSON" in str(error)
        return
    assert found == json.loads(text)


@pytest.mark.parametrize("text", [
    "[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, '{"a": 0, "b": 1, "a": 2}', "9" * 5000,
    "[NaN]", "-Infinity", b'"\xff"', "", " \n", "[1,]", '{"a": 1', "{'a': 1}", '"\n"', "1 2"],
    ids=lambda value: ascii(value)[:24])
def test_what_is_refused_says_where(text):
    with pytest.raises(FormatError, match="^boxes.json: not usable as JSON: ") as caught:
        parse_json(text, "boxes.json")
    assert len(str(caught.value)) < 300


def test_nan_where_it_may_come_and_objects_as_they_are_read():
    assert parse_json("[NaN, -Infinity]", nan=True)[1] == float("-inf")
    assert parse_json('{"a": {"b": 1}}', each=list) == ["a"]
    assert parse_json("[1]".encode("utf-16")) == [1]


def test_a_path_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "pipe.json"):
        with pytest.raises(FormatError, match="expected a file"):
            read_json(path)
    with pytest.raises(FileNotFoundError, match="none.json"):
        read_json(tmp_path / "none.json")
