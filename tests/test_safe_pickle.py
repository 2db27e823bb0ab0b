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

from qgcam_lib.data import safe_pickle
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
        "extension 1": b"\x80\x02\x82\x01.", "extension 2": b"\x80\x02\x83\x01\x00.",
        "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.", "persistent id": b"P1\n.", "binary persistent id": b"K\x01Q.",
        "bytearray": b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", "buffer": b"\x80\x05\x97.",
        "readonly buffer": b"\x80\x05N\x98.",
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


def test_every_instruction_of_python_is_plain_or_refused():
    """None falls through: the reader has what is listed, and an instruction that Python adds is refused."""
    stack = b"\x80\x04" + b"K\x01" * 3
    arguments = {0: b"", -1: b"1\n", 1: b"\x00", 2: b"\x00\x00", 4: b"\x00" * 4, 8: b"\x00" * 8}
    refused = set()
    for op in pickletools.opcodes:
        try:
            read_plain_bytes(stack + op.code.encode("latin-1") + arguments.get(op.arg.n if op.arg else 0, b"\x00" * 8))
        except FormatError as error:
            refused |= {op.name} if "asks for" in str(error) else set()
    assert refused >= {"OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID",
                       "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "GLOBAL", "INST"}


# -- plain data

SCALARS = (st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
           | st.text(max_size=20))
KEYS = st.integers() | st.text(max_size=8) | st.none()


def values(leaves):
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
                        max_leaves=25)


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


@pytest.mark.parametrize("value, protocol", [({1}, 2), ({1}, 4), (b"a\xff", 2), (1j, 4), ((1, 2), 4)])
def test_what_is_no_plain_data_is_refused(value, protocol):
    with pytest.raises(FormatError, match="asks for"):
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
        whole = pickle.dumps([{"ref_id": 7, "sent": "red", "box": [1.5, 2**70], "long": "x" * 300}], protocol)
        for length in range(len(whole)):
            with pytest.raises(FormatError):
                read_plain_bytes(whole[:length])


@pytest.mark.parametrize("data", [
    b"", b"not a pickle", b"\x80\x06N.", b"X\xff\xff\xff\xff", b"T\xff\xff\xff\xff", b"h\x05.", b"a.", b"}K\x01K\x02a.",
    b"}(K\x01u.", b"}]K\x01s.", b"S'open\n.", b"I1x\n.", b"I" + b"9" * 5000 + b"\n.", b".", b"\xfe.", b"Gabc.",
    b"\x8b" + struct.pack("<i", 5000) + b"\x01" * 5000 + b".", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
])
def test_broken_and_greedy_pickles_are_one_error(data):
    with pytest.raises(FormatError, match="^the pickle"):
        read_plain_bytes(data)


def endless(n):
    """Pickles whose instructions do nothing but cost memory: n of each."""
    return {"sets": b"\x80\x04(" + b"\x8f" * n + b"t.", "kept": b"N" + b"r\0\0\0\0" * n + b".",
            "memoized": b"\x80\x04N" + b"\x94" * n + b".", "marks": b"(" * n + b".", "lists": b"(" + b"]" * n + b"l.",
            "texts": b"\x80\x04(" + b"\x8c\x02ab" * n + b"l."}


@pytest.mark.parametrize("name", endless(0))
def test_no_instruction_is_repeated_without_end(name, monkeypatch):
    assert read_plain_bytes(b"Nr\xff\xff\xff\xff.") is None, "the reader in C makes room for four billion values here"
    monkeypatch.setattr(safe_pickle, "MAX_REPEATS", 1000)
    with pytest.raises(FormatError, match="instruction" if name == "sets" else "more than 1,000 times"):
        read_plain_bytes(endless(2000)[name])
    assert read_plain_bytes(pickle.dumps(["ab"] * 900, 0)) == ["ab"] * 900


@pytest.mark.nightly
@pytest.mark.parametrize("name", endless(0))
def test_endless_pickles_of_full_size_need_little_memory(name, tmp_path):
    (tmp_path / "refs(unc).p").write_bytes(endless(12_000_000)[name])
    code = """import resource, sys
from qgcam_lib.data.safe_pickle import FormatError, read_plain_pickle
try: read_plain_pickle(sys.argv[1])
except FormatError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "refs(unc).p"], capture_output=True, text=True)
    assert int(done.stdout) < 600, "MB, the interpreter and the file among them"


def test_a_file_of_any_length_is_not_read(monkeypatch):
    monkeypatch.setattr(safe_pickle, "MAX_BYTES", 1000)
    with pytest.raises(FormatError, match="limit is 1,000"):
        read_plain_bytes(b"(" + b"]" * 2000 + b"l.")


def test_files(tmp_path):
    path = tmp_path / "refs(unc).p"
    path.write_bytes(pickle.dumps([1, "a"], 2))
    assert read_plain_pickle(path) == [1, "a"] and read_plain_pickle(os.fspath(path)) == [1, "a"]
    with pytest.raises(FileNotFoundError):
        read_plain_pickle(tmp_path / "none.p")
