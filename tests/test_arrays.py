"""Arrays of an npz: read as NumPy reads them, or one documented error."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy

from qgcam_lib.errors import FormatError
from qgcam_lib.storage import arrays as module
from qgcam_lib.storage.arrays import Npz

KINDS = st.sampled_from(["f4", "f8", "i8", "u1", "?", "c8", "U3", "S2", ">f4"])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.text("abc/.", min_size=1, max_size=5).filter(lambda name: not name.endswith(".npy")),
                       KINDS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0))),
                       max_size=3), st.booleans(), st.booleans())
def test_what_numpy_wrote_comes_back(values, compressed, fortran):
    values = {name: np.asfortranarray(value) if fortran else value for name, value in values.items()}
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **{f"{name}": value for name, value in values.items()})
    found = Npz(file)
    assert set(found.names) == set(values)
    with np.load(io.BytesIO(file.getvalue())) as oracle:
        for name in values:
            np.testing.assert_array_equal(found[name], oracle[name])
            assert found[name].dtype == oracle[name].dtype


def header(text=None, shape=(3,), descr="<f8", fortran=False):
    """The bytes of an array's header, honest or not."""
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": descr, "fortran_order": fortran, "shape": shape})
    if text is None:
        return out.getvalue()
    return npy.magic(2, 0) + len(text).to_bytes(4, "little") + text


def packed(*entries, kind=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out


class Attack:
    def __reduce__(self):
        return open, ("stranger-was-here", "w")


def pickled():
    out = io.BytesIO()
    np.savez(out, a=np.array([Attack(), 1], object))
    return out


HOSTILE = {
    "objects": (pickled, "Python objects, which can run code"),
    "petabyte": (lambda: packed(("a.npy", header(shape=(10**15,)) + bytes(99))), "claims 8,000,000,000,000,000 bytes"),
    "overflow": (lambda: packed(("a.npy", header(shape=(2**40, 2**40)) + bytes(99))), "claims"),
    "negative": (lambda: packed(("a.npy", header(shape=(-1,)) + bytes(99))), "expected plain numbers"),
    "long header": (lambda: packed(("a.npy", header(b" " * 10**6))), "cannot be read"),
    "deep header": (lambda: packed(("a.npy", header(b"(" * 9_000))), "cannot be read"),
    "no end": (lambda: packed(("a.npy", header(b"{\'descr\': \'<f4\'"))), "cannot be read"),
    "fields": (lambda: packed(("a.npy", header(descr=[("x", "<f4"), ("y", "<f4")]) + bytes(99))), "plain numbers"),
    "times": (lambda: packed(("a.npy", header(descr="<M8[s]") + bytes(99))), "plain numbers"),
    "no array": (lambda: packed(("a.npy", b"hello")), "cannot be read"),
    "empty": (lambda: packed(("a", b"")), "cannot be read"),
    "version": (lambda: packed(("a.npy", npy.magic(9, 9) + bytes(99))), "header of version"),
    "cut": (lambda: packed(("a.npy", header(shape=(9,)) + bytes(24))), "claims 72 bytes where there are 24"),
    "no zip": (lambda: io.BytesIO(b"hello"), "no npz"), "nothing": (lambda: io.BytesIO(b""), "no npz"),
    "array alone": (lambda: io.BytesIO(header() + bytes(24)), "no npz"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_npz_is_one_documented_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, says = HOSTILE[name]
    content = make().getvalue()
    (tmp_path / "f.npz").write_bytes(content)
    for file in (tmp_path / "f.npz", io.BytesIO(content)):
        with pytest.raises(FormatError, match=says) as error:
            Npz(file, "f.npz")["a"]
        assert str(error.value).startswith("f.npz: ") and len(str(error.value)) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["f.npz"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bombs_and_doubled_names_are_refused_before_anything_is_read(monkeypatch):
    zeros = header(shape=(10**6,)) + bytes(8 * 10**6)
    bomb = packed(("a.npy", zeros), kind=zipfile.ZIP_DEFLATED)
    assert len(bomb.getvalue()) < 20_000
    with pytest.raises(FormatError, match="arrays of 8,000,128 bytes in a file of .* 1,000,000 are allowed"):
        Npz(bomb, largest=10**6)
    assert Npz(bomb)["a"].shape == (10**6,)
    for twice in (("a.npy", "a.npy"), ("a.npy", "a")):
        with pytest.raises(FormatError, match="the array \'a\' is there twice"):
            Npz(packed(*[(name, header() + bytes(24)) for name in twice]))
    with pytest.raises(KeyError):
        Npz(packed(("a.npy", header() + bytes(24))))["b"]
    with pytest.raises(FileNotFoundError):
        Npz("none.npz")
    assert module.MAX_NPZ_BYTES == 2**34


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6))
def test_a_changed_npz_is_read_or_refused(place, change):
    file = io.BytesIO()
    np.savez(file, a=np.arange(4.0), ids=np.array(["x", "y"]))
    whole = file.getvalue()
    place %= len(whole)
    try:
        found = Npz(io.BytesIO(whole[:place] + change + whole[place + len(change):]), "f")
        for name in found.names:
            assert isinstance(found[name], np.ndarray)
    except FormatError as error:
        assert str(error).startswith("f: ") and len(str(error)) < 500
