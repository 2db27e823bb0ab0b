"""The reader of JSON: what it gives, what it refuses, that it is linear, and that its values can be written again."""
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qgcam_lib.errors import FormatError
from qgcam_lib.storage.json_reader import MAX_JSON_DEPTH, parse_json, read_json

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


def slow_depth(text):
    """The depth of the brackets by reading mark after mark."""
    inside = escaped = False
    depth = most = 0
    for mark in text:
        if inside:
            inside, escaped = escaped or mark != '"', not escaped and mark == "\\"
        elif mark == '"':
            inside = True
        elif mark in "[{":
            depth, most = depth + 1, max(most, depth + 1)
        elif mark in "]}":
            depth -= 1
    return most


@given(plain)
def test_the_limit_of_depth_counts_as_reading_mark_by_mark_does(value):
    text = json.dumps(value)
    depth = slow_depth(text)
    assert parse_json(text, deepest=depth) == value
    if depth:
        with pytest.raises(FormatError, match=f"at most {depth - 1} brackets inside each other, got {depth}"):
            parse_json(text, deepest=depth - 1)


@pytest.mark.parametrize("text, found", [
    ("[" * 100_000, "got 100000"), ("[" * 100_000 + "]" * 100_000, "got 100000"), ('{"a":' * 100_000, "got 100000"),
    ("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1), "got 101"),
    ("{" + ", ".join(f'"{k // 2}": 0' for k in range(20_000)) + "}", "'0' twice"),
    ("[1" + "0" * 400 + "]", "401"), ("9" * 5000, "5000"), ("-" + "9" * 5000, "5000"), ("[1e400]", "1e400"),
    ("[-1E+999]", "-1E\\+999"), ("1" * 400 + ".5", "below 1.8e308"), ("[NaN]", "NaN"), ("-Infinity", "-Infinity"),
    (r'"\ud800"', "half"), (r'{"\udc00": 1}', "half"), (r'"\ude00\ud83d"', "half"), (r'"\\\ud83d"', "half"),
    ("\ud800", "UTF-8"), (b'"\xed\xa0\x80"', "UTF-8"), (b'"\xff"', "UTF-8"), ("[1]".encode("utf-16"), "UTF-16"),
    ("[1]".encode("utf-16-le"), "UTF-16"), ("[1]".encode("utf-32"), "UTF-32"), ("", "nothing"), (" \n", "nothing"),
    ("[1,]", "line 1"), ('{"a": 1', "line 1"), ("{'a': 1}", "line 1"), ('"\n"', "control"), ("1 2", "Extra data")],
    ids=lambda value: ascii(value)[:24])
def test_what_is_refused_says_where_and_what(text, found):
    with pytest.raises(FormatError, match=f"^(?s:boxes.json: not usable as JSON: .*{found}.*)$"):
        parse_json(text, "boxes.json")


def test_what_the_limits_let_through():
    assert parse_json("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    assert parse_json(str(10**307)) == 10**307 and parse_json('["' + "9" * 5000 + '", "1e400"]')[1] == "1e400"
    assert parse_json(r'"\ud83d\ude00 \\ud800"') == "\U0001f600 \\ud800"
    assert parse_json('"' + "[" * 1000 + r'\" [ \\"') == "[" * 1000 + '" [ \\'
    assert parse_json("[NaN, -Infinity]", nan=True)[1] == float("-inf")
    assert parse_json("[1e400, -1" + "0" * 400 + ", 3]", nan=True) == [float("inf"), float("-inf"), 3]
    assert parse_json("1e-400") == 0.0
    assert parse_json('{"a": {"b": 1}}', each=list) == ["a"]


def test_a_path_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "long.json").write_text("[1, 2, 3]")
    for path, found in ((tmp_path, "a folder"), (tmp_path / "pipe.json", "a device"), ("a" * 300, "cannot be read"),
                        ("a\0b", "cannot be read"), ("a\ud800", "cannot be read")):
        with pytest.raises(FormatError, match=found) as caught:
            read_json(path)
        str(caught.value).encode()
    with pytest.raises(FileNotFoundError, match="none.json: no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(FormatError, match="at most 8 bytes, got 9"):
        read_json(tmp_path / "long.json", largest=8)


def test_hostile_texts_of_megabytes_are_read_in_linear_time():
    """Nine texts of 4 to 8 MB; anything quadratic in them would take hours."""
    program = """
from qgcam_lib.errors import FormatError
from qgcam_lib.storage.json_reader import parse_json
n = 2**22
texts = ["[" * n, '["' + "[" * n + '"]', "{" + ",".join(f'"{k}":0' for k in range(n // 16)) + "}",
         "9" * n, "0." + "9" * n,
         "{" + ",".join(f'"{k // 2}":0' for k in range(n // 16)) + "}", '"' + r"\\\\" * n + '"', '"' * n,
         '"' + r"\\ud83d" * (n // 6) + '"']
for text in texts:
    try:
        parse_json(text)
    except FormatError as error:
        assert len(str(error)) < 300
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "read\n", done.stderr
