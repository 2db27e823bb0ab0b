"""How hostile inputs are made: a small valid input with a few edits, as a document, as words or as bytes."""

import io
import json
import re
import zipfile
from copy import deepcopy

from hypothesis import strategies as st


class Raw(str):
    """Stands in a JSON document as it is written here."""


class Pairs(list):
    """An object of JSON as [key, value] pairs, so that a key can stand twice."""


DEEP = 100_000
VALUES = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**53, 2**63, -(2**63), 10**18, 1e308, 1e-320, float("nan"),
    float("inf"), "", " ", "a", "0", "1", "-1", "1/2", "1.5", "nan", "é", "名", "a" * 300, "a" * 5000, "..", "../../x",
    "/etc/passwd", "outside.txt", "../outside.txt", "a/b", "a\\b", "a\0b", "\ud800", "\u202e", "\x1b[31m", "a\nb",
    "<script>alert(1)</script>", "$a_b$", "$5 # $6", "{}", "[[[", "{0.__class__}", "%s%n", "None", "true", "http://x",
    "__proto__", "id", "C:\\x", "~root/x", [], {}, [5], [[]], [None], ["a"], [0, 0, 0, 0], [1, 2, 3], [5, 5, 1, 1],
    [1, 2, 3, 4, 5], [float("nan")] * 4, [1e308] * 4, [-1e308, -1e308, 1e308, 1e308], [True] * 4, ["1"] * 4,
    [[0, 0, 9, 9]] * 3, {"a": 1}, {"": ""}, {"id": 1}, [{"id": 1}], [{}], [1] * 300, ["a"] * 300,
    Raw("1" + "0" * 400), Raw("-1" + "0" * 400), Raw("9" * 5000), Raw("[1" + "0" * 400 + "]"), Raw("1e999"),
    Raw("-Infinity"), Raw("NaN"), Raw("[" * 1200 + "]" * 1200), Raw("[" * DEEP + "]" * DEEP),
    Raw('{"a":' * DEEP + "1" + "}" * DEEP), Raw("[" * DEEP), Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw("'a'"),
    Raw(""), Raw("undefined"), Raw("01"), Raw("1."), Raw('{"a":1,"a":2}'), Raw("[1,]"), Raw("// a"),
    Raw('"' + "\\" * 99), Raw("{" + '"a":1,' * 99 + '"b":1}'),
]
WORDS = [
    "", " ", "0", "-1", "1", "1.5", "nan", "NaN", "inf", "-inf", "1e999", "1e308", "9" * 400, "9" * 5000, str(2**31),
    str(2**63), "../../x", "../outside.txt", "/etc/passwd", "a" * 300, "a" * 5000, "\0", "\ufeff", "\ud800", "é", "名",
    "\u202e", "\x1b[31m", "\r", "\n", "\r\n", "\t", ",", ";", '"', "'", '"""', "[", "]", "{", "}", "(", ")",
    "[" * 300, "[" * DEEP, "(" * 300, "{" * 300, "<", ">", "&", "&a;", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "<a>" * 300,
    "<?xml version='1.0' encoding='shift-jis'?>", "<script>alert(1)</script>", "$a_b$", "$5 # $6", "#", "=", "==",
    ":", "|", "\\", "/", "%", "%s", "${HOME}", "None", "True", "true", "null", "1/2", "=1+1", "__class__",
    "lambda: 0", "1if 1else", "f''", "{[", "*", "**", "@", "!", "~", "--", "-p", "--help", "1_000", "0x10", "1j",
    "b'a'", "...", "1\n2", "date", "2024-01-01", "12:00:00", "[a]", "[[a]]", "a.b.c", "a = 1", "'''", "\\u0000",
    "\\x", "$(id)", "`id`", "; id", "|id",
]
BYTES = [
    b"", b"\0", b"\xff", b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x80", b"\xef\xbb\xbf", b"\xff\xfe",
    b"\xed\xa0\x80", b"PK\x03\x04", b"\x93NUMPY", b"PAR1", b"SQLite format 3\0", b"\x80\x04.",
    b"cos\nsystem\n(S'true'\ntR.", b"]", b"}", b"[" * 2000, b"\n", b"9" * 40,
]


def pairs(value):
    """A document with every object as `Pairs`."""
    if isinstance(value, dict):
        return Pairs([key, pairs(one)] for key, one in value.items())
    return [pairs(one) for one in value] if isinstance(value, list | tuple) else value


def plain(value):
    """The document again, with `Raw` as the text that it is; of a doubled key the last counts."""
    if isinstance(value, Pairs):
        return {key: plain(one) for key, one in value}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Raw) else value


def written(value) -> str:
    """A document as JSON."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {written(one)}" for key, one in value) + "}"
    return "[" + ", ".join(map(written, value)) + "]" if isinstance(value, list) else json.dumps(value)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _places(value, found):
    """(container, index) of every value of a document, from the outside in."""
    for n, one in enumerate(value if isinstance(value, list) else ()):
        found.append((value, n))
        _places(one[1] if isinstance(value, Pairs) else one, found)
    return found


def edited(document, edits):
    """A document (of `pairs`) after some edits (place, what to do, value)."""
    top = [deepcopy(document)]
    for place, what, value in edits:
        found = _places(top, [])
        if not found:
            break
        where, n = found[place % len(found)]
        named = isinstance(where, Pairs)
        old = where[n][1] if named else where[n]
        if what == "drop" and where is not top:
            del where[n]
        elif what == "many":
            where[n:n] = [deepcopy(where[n]) for _ in range(1 + 39 * (place % 2))]
        elif what == "name" and named:
            where[n] = [value if isinstance(value, str) else str(value)[:99], old]
        elif what in ("put", "nest", "other"):
            source, m = found[(place * 7 + 3) % len(found)]
            other = deepcopy(source[m][1] if isinstance(source, Pairs) else source[m])
            new = {"put": pairs(value), "nest": [old], "other": other}[what]
            where[n] = [where[n][0], new] if named else new
    return top[0] if top else None


def retyped(text: str, edits) -> str:
    """A text after some edits of its words, signs and spaces (place, what to do, word)."""
    words = edited(re.findall(r"[\w.+-]+|\s+|[^\w\s]", text), edits)
    return "".join(map(str, words)) if isinstance(words, list) else str(words)


def spliced(data: bytes, edits) -> bytes:
    """Bytes after some edits (place, what to do, bytes)."""
    for place, what, piece in edits:
        n = place % (len(data) + 1)
        if what == "flip":
            data = data[:n] + bytes(one ^ (1 << place % 8) for one in data[n:n + 1]) + data[n + 1:]
        elif what == "cut":
            data = data[:n]
        elif what == "behead":
            data = data[n:]
        elif what == "insert":
            data = data[:n] + piece + data[n:]
        elif what == "put":
            data = data[:n] + piece + data[n + len(piece):]
    return data


def _edits(whats, pieces):
    return st.lists(st.tuples(st.integers(0, 2**20), st.sampled_from(whats), pieces), min_size=1, max_size=3)


values = (st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=8)
          | st.lists(st.floats(-200, 200), max_size=5))
words = st.sampled_from(WORDS) | st.text(max_size=8) | st.integers().map(str) | st.floats().map(str)
value_edits = _edits(["put", "put", "put", "put", "drop", "many", "nest", "name", "other"], values)
word_edits = _edits(["put", "put", "put", "drop", "many", "other"], words)
byte_edits = _edits(["flip", "flip", "cut", "insert", "put", "behead"], st.sampled_from(BYTES) | st.binary(max_size=8))
raw = (st.binary(max_size=200) | st.text(max_size=60).map(encoded)
       | st.sampled_from([encoded(written(one)) for one in VALUES] + [encoded(one) for one in WORDS]))


def json_bytes(base):
    """JSON files near `base`: edited as documents most of the time, else as texts, as bytes, or anything."""
    tree, text = pairs(base), json.dumps(base)
    document = value_edits.map(lambda edits: written(edited(tree, edits)).encode())
    return st.one_of(document, document, document, text_bytes(text))


def text_bytes(base: str):
    """Text files near `base`."""
    text = word_edits.map(lambda edits: encoded(retyped(base, edits)))
    return st.one_of(text, text, byte_edits.map(lambda edits: spliced(base.encode(), edits)), raw)


def any_bytes(base: bytes):
    """Files near `base`, byte by byte, and word by word where the format has words in it."""
    text = word_edits.map(lambda edits: retyped(base.decode("latin-1"), edits).encode("latin-1", "replace"))
    data = byte_edits.map(lambda edits: spliced(base, edits))
    return st.one_of(data, data, text, raw)


def built(base, build):
    """Files that `build(document)` writes of documents near `base`, and those near what it writes of `base` itself."""
    tree = pairs(base)

    def write(edits):
        try:
            return build(plain(edited(tree, edits)))
        except Exception:  # the writer refuses it, so there is no such file
            return build(base)

    made = value_edits.map(write)
    return st.one_of(made, made, any_bytes(build(base)))


def zip_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def near(files: dict[str, bytes], **special):
    """Folders of files near these, one or two of them changed; special: strategies of single files, by name."""
    made = {}
    for name, data in files.items():
        suffix = name.rsplit(".", 1)[-1]
        if name in special:
            made[name] = special[name]
        elif suffix in ("json", "ipynb"):
            made[name] = json_bytes(json.loads(data))
        elif suffix in ("xml", "txt", "csv", "tsv", "toml", "ini"):
            made[name] = text_bytes(data.decode())
        else:
            made[name] = any_bytes(data)
    changed = st.one_of([st.tuples(st.just(name), strategy) for name, strategy in made.items()])
    return st.lists(changed, min_size=1, max_size=min(2, len(files))).map(lambda found: {**files, **dict(found)})


def js(value) -> bytes:
    return json.dumps(value).encode()
