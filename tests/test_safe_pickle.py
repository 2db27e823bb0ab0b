"""Pickles as plain data: malicious ones run nothing, malformed ones are told, plain ones come back as Python reads."""

import os
import pickle
import pickletools
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.safe_pickle import read_plain_bytes, read_plain_pickle
from qgcam_lib.errors import FormatError

# -- attacks: each would make the canary file if it ran


def attacks(canary):
    code = f"open({str(canary)!r},'w')"
    text = code.encode()
    short = b"\x8c" + bytes([len(text)]) + text

    class Reduce:
        def __reduce__(self):
            return eval, (code,)

    class WithState:
        def __reduce__(self):
            return eval, (code,), {"a": 1}

    class Items:
        def __reduce__(self):
            return list, (), None, iter([Reduce()])

    found = {f"reduce {p}": pickle.dumps(Reduce(), p) for p in range(6)}
    inside = [{"ref_id": 1, "sentences": [{"sent": Reduce()}]}]
    found |= {f"inside a ref {p}": pickle.dumps(inside, p) for p in (0, 2, 4)}
    found |= {"state": pickle.dumps(WithState(), 2), "list items": pickle.dumps(Items(), 4)}
    found |= {
        "global": b"c__builtin__\neval\n(S" + repr(code).encode() + b"\ntR.",
        "global alone": b"cos\nsystem\n.",
        "inst": b"(S" + repr(code).encode() + b"\ni__builtin__\neval\n.",
        "obj": b"(c__builtin__\neval\nS" + repr(code).encode() + b"\no.",
        "newobj": b"\x80\x02c__builtin__\neval\nS" + repr(code).encode() + b"\n\x85\x81.",
        "newobj_ex": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85}\x92.",
        "build": b"\x80\x02}}b.",
        "reduce on data": b"\x80\x02]" + b")R.",
        "stack global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85R.",
        "stack global from the memo": b"\x80\x04\x8c\x04eval\x94\x8c\x08builtins\x94h\x01h\x00\x93" + short + b"\x85R.",
        "stack global of a popped name": b"\x80\x04\x8c\x08builtinsN0\x8c\x04eval\x93" + short + b"\x85R.",
        "extension 1": b"\x80\x02\x82\x01.", "extension 2": b"\x80\x02\x83\x01\x00.",
        "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.", "persistent id": b"P1\n.", "binary persistent id": b"K\x01Q.",
        "bytearray": b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", "buffer": b"\x80\x05\x97.",
        "readonly buffer": b"\x80\x05N\x98.",
        "attribute path": b"\x80\x04\x8c\x08builtins\x8c\x0eeval.__class__\x93.",
        "copyreg": b"ccopy_reg\n_reconstructor\n(c__builtin__\nobject\nc__builtin__\nobject\nNtR.",
        "in a key": b"}c__builtin__\neval\nK\x01s.", "after data": pickle.dumps([1, 2], 0)[:-1] + b"cos\nsystem\n.",
    }
    return found


def test_no_attack_runs(tmp_path):
    canary = tmp_path / "canary"
    for name, attack in attacks(canary).items():
        with pytest.raises(FormatError) as error:
            read_plain_bytes(attack, source="refs(unc).p")
        assert str(error.value).startswith("refs(unc).p asks for ") and not canary.exists(), name
    pickle.loads(attacks(canary)["stack global from the memo"])  # the canary can die: Python's own reader kills it
    assert canary.exists()


@pytest.mark.parametrize("attack, wanted", [
    (b"cos\nsystem\n(S'x'\ntR.", "os.system"), (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
    (b"(ios\nsystem\n.", "os.system"), (b"\x80\x02]]R.", "more than plain data (instruction REDUCE)"),
    (b"P7\n.", "more than plain data (instruction PERSID)"),
])
def test_the_error_says_what_was_asked_for(attack, wanted):
    with pytest.raises(FormatError) as error:
        read_plain_bytes(attack)
    assert f"the pickle asks for {wanted}. " in str(error.value)


def test_every_instruction_of_python_is_plain_or_refused():
    """None falls through: the reader has what is listed, and an instruction that Python adds is refused."""
    stack = b"\x80\x04" + b"K\x01" * 3
    arguments = {0: b"", -1: b"1\n", 1: b"\x00", 2: b"\x00\x00", 4: b"\x00" * 4, 8: b"\x00" * 8}
    refused = set()
    for op in pickletools.opcodes:
        try:
            read_plain_bytes(stack + op.code.encode("latin-1") + arguments.get(op.arg.n if op.arg else 0, b"\x00" * 8))
        except FormatError as error:
            refused |= {op.name} if f"(instruction {op.name})" in str(error) else set()
    assert refused == {"OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID",
                       "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "LONG4"}


ONE_PLACE = 2**61 - 1  # Python gives its multiples one hash


@pytest.mark.parametrize("value", [
    dict.fromkeys(range(20_000)), dict.fromkeys(map(float, range(20_000))), {(k, "a"): 0 for k in range(20_000)},
    [dict.fromkeys(range(j * 999, j * 999 + 999)) for j in range(20)], set(range(20_000)),
    frozenset(range(20_000)),
], ids=["integers", "floats", "tuples", "many small", "set", "frozenset"])
def test_more_numbers_as_keys_than_can_collide_cheaply_are_refused(value):
    for protocol in (2, 4) if isinstance(value, dict | list) else (4,):
        with pytest.raises(FormatError, match="more than 10,000 numbers as keys"):
            read_plain_bytes(pickle.dumps(value, protocol))


def test_colliding_integers_end_soon():
    """Written by hand, since making such a dictionary in Python takes as long as reading it."""
    def packed(count):
        keys = (pickle.encode_long(k * ONE_PLACE) for k in range(1, count))
        return b"\x80\x02}(" + b"".join(b"\x8a" + bytes([len(key)]) + key + b"K\x00" for key in keys) + b"u."

    code = ("import sys; from qgcam_lib.data.safe_pickle import read_plain_bytes\n"
            "try: print(len(read_plain_bytes(sys.stdin.buffer.read())))\nexcept ValueError as e: print(e)")
    for count, says in ((200_000, "numbers as keys"), (3_000, "2999")):  # 200,000 took minutes
        shown = subprocess.run([sys.executable, "-c", code], input=packed(count), capture_output=True, timeout=60)
        assert says in shown.stdout.decode(), shown.stderr


def test_texts_as_keys_have_no_limit_of_their_own():
    value = {f"{k}": k for k in range(30_000)}
    assert read_plain_bytes(pickle.dumps(value)) == value


# -- plain data

SCALARS = (st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
           | st.text(max_size=20))
KEYS = st.integers() | st.text(max_size=8) | st.none() | st.tuples(st.integers(), st.text(max_size=3))


def values(leaves):
    def around(inner):
        tuples = st.tuples(inner) | st.tuples(inner, inner) | st.lists(inner, max_size=6).map(tuple)
        return st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5) | tuples

    return st.recursive(leaves, around, max_leaves=25)


def same(a, b):
    """Equal, with the same types throughout (True is not 1)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b))
    return a == b


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values(SCALARS), st.integers(0, 5))
def test_plain_data_come_back(value, protocol):
    data = pickle.dumps(value, protocol=protocol)
    found = read_plain_bytes(data)
    assert same(found, value) and same(found, pickle.loads(data))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sets(st.integers() | st.text(max_size=5)), st.frozensets(st.integers()), st.binary(max_size=300))
def test_sets_and_bytes_come_back_from_protocols_that_have_them(a, b, c):
    for protocol in (4, 5):
        found = read_plain_bytes(pickle.dumps([a, b, c], protocol))
        assert found == [a, b, c] and list(map(type, found)) == [set, frozenset, bytes]
    assert read_plain_bytes(pickle.dumps(c, 3)) == c


@pytest.mark.parametrize("value, protocol, wanted", [({1}, 2, "set"), (b"a\xff", 2, "_codecs.encode"),
                                                     (1j, 4, "complex")])
def test_what_older_protocols_need_a_function_for_is_refused(value, protocol, wanted):
    with pytest.raises(FormatError, match=f"asks for .*{wanted}"):
        read_plain_bytes(pickle.dumps(value, protocol))


def test_what_python_2_wrote():
    protocol_0 = (b"(lp0\n(dp1\nS'sent'\np2\nS'caf\\xc3\\xa9 \\'n\\''\np3\nsS'raw'\np4\nVna\\u00efve\np5\ns"
                  b"S'ann_id'\np6\nI491042\nsS'big'\np7\nL123456789012345678901L\nsS'ok'\np8\nI01\nsS'x'\nF1.5\nsa.")
    protocol_2 = b"\x80\x02]q\x01}q\x02(U\x04sentq\x03U\x05caf\xc3\xa9q\x04U\x06ann_idq\x05J\x12~\x07\x00ua."
    assert read_plain_bytes(protocol_0) == [{"sent": "café 'n'", "raw": "naïve", "ann_id": 491042,
                                            "big": 123456789012345678901, "ok": True, "x": 1.5}]
    assert read_plain_bytes(protocol_2) == [{"sent": "café", "ann_id": 491026}]
    assert read_plain_bytes(b"U\x04caf\xe9.") == "café", "Latin-1 where it is not UTF-8"


# -- malformed and hostile data


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=60))
def test_random_bytes_give_a_value_or_a_clear_error(data):
    try:
        read_plain_bytes(data)
    except FormatError as error:
        assert str(error).startswith("the pickle")


def test_every_cut_is_told():
    for protocol in range(6):
        whole = pickle.dumps([{"ref_id": 7, "sent": "red", "box": (1.5, 2**70), "long": "x" * 300}], protocol)
        for length in range(len(whole)):
            with pytest.raises(FormatError):
                read_plain_bytes(whole[:length])


@pytest.mark.parametrize("data, words", [
    (b"", "EOFError"), (b"not a pickle", "damaged or no pickle"), (b"\x80\x06N.", "protocol: 6"),
    (b"X\xff\xff\xff\xff", "cut off"), (b"T\xff\xff\xff\xff", "negative byte count"),
    (b"h\x05.", "Memo value not found at index 5"), (b"a.", "IndexError"), (b"}K\x01K\x02a.", "append"),
    (b"t.", "IndexError"), (b"q\x00.", "IndexError"), (b"}(K\x01u.", "IndexError"),
    (b"}]K\x01s.", "a key that is a list"),
    (b"S'open\n.", "STRING opcode argument must be quoted"), (b"I1x\n.", "invalid literal"),
    (b"(I" + b"9" * 5000 + b"\nt.", "limit"), (b".", "IndexError"), (b"\xfe.", "KeyError 254"),
    (b"\x8b" + struct.pack("<i", 5000) + b"\x01" * 5000 + b".", "instruction LONG4"), (b"Gabc.", "unpack requires"),
    (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut off"),
])
def test_broken_pickles_say_why(data, words):
    with pytest.raises(FormatError, match=words):
        read_plain_bytes(data)


def test_hostile_plain_data_are_cut_short():
    level = ["lol"]
    for _ in range(30):
        level = [level] * 10
    loop, pair = [], ()
    loop.append({"me": loop})
    for _ in range(60):
        pair = (pair, pair)
    deep = b"]" * 100_000 + b"a" * 99_999 + b"."
    tower = b")" + b"\x85" * 100_000 + b"."
    memo_index = b"Nr\xff\xff\xff\xff."  # Python's own machine makes room for four billion values here
    with pytest.raises(FormatError, match="more than 50,000,000 items when unfolded"):
        read_plain_bytes(pickle.dumps(level))
    with pytest.raises(FormatError, match="that contains itself"):
        read_plain_bytes(pickle.dumps(loop))
    with pytest.raises(FormatError, match="a key that is a tuple of containers, or of more than 64 values"):
        read_plain_bytes(pickle.dumps(pair)[:-1] + b"\x94}h\x00K\x01s.".replace(b"h\x00", b"j\x3b\x00\x00\x00"))
    for data in (deep, tower):
        with pytest.raises(FormatError, match="nested too deep"):
            read_plain_bytes(data)
    assert read_plain_bytes(memo_index) is None
    with pytest.raises(FormatError, match="more than 1,000 lists"):
        read_plain_bytes(b"(" + b"]" * 2000 + b"l.", max_items=1000)
    assert read_plain_bytes(pickle.dumps([[1] * 3] * 5)) == [[1] * 3] * 5, "sharing as such is fine"


def test_files(tmp_path):
    path = tmp_path / "refs(unc).p"
    path.write_bytes(pickle.dumps([1, "a"], 2))
    assert read_plain_pickle(path) == [1, "a"] and read_plain_pickle(os.fspath(path)) == [1, "a"]
    with pytest.raises(FormatError, match=r"refs\(unc\).p: .* bytes; the limit is 3"):
        read_plain_pickle(path, max_bytes=3)
    with pytest.raises(FileNotFoundError):
        read_plain_pickle(tmp_path / "none.p")
