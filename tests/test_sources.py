"""Fetching: resumed, checked, unpacked into its folder only. A server on this machine; nothing goes out."""

import hashlib
import io
import random
import re
import tarfile
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qgcam_lib.cli.main import main
from qgcam_lib.data import sources as module
from qgcam_lib.data.catalog import NAMES
from qgcam_lib.data.sources import Source, fetch, fetch_file, manual_steps, read_fetched, read_sources, unpack
from qgcam_lib.errors import SourceError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    """files: what it has. cuts: after how many bytes each of the next answers breaks off. log: what was asked for.
    lie: how it answers, "" truly."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.log, self.ranges, self.tags, self.lie = {}, [], [], True, {}, ""
        self.base = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, name = self.server, self.path.strip("/")
        asked = self.headers.get("Range")
        server.log.append((name, asked))
        if name not in server.files:
            return self.send_error(404)
        data, begin, tag = server.files[name], 0, server.tags.get(name, f'"{name}-1"')
        if server.lie and asked or server.lie in ("endless", "long"):
            return self.lie(server.lie, data, int((asked or "bytes=0-")[6:-1]))
        if asked and server.ranges and self.headers.get("If-Range", tag) == tag:
            begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
        if begin >= len(data) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", tag)
        self.end_headers()
        end = begin + server.cuts.pop(0) if server.cuts else len(data)
        self.wfile.write(data[begin:end])
        self.close_connection = True


    def lie(self, how, data, begin):
        """An answer that is not true: to a question for the rest, or, "endless" and "long", to any."""
        full = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        status, place, length, tag, sent = {
            "416": (416, f"bytes */{begin}", 0, None, b""),  # says that what came is all
            "another 416": (416, "bytes */7", 0, None, b""),
            "begins elsewhere": (206, "bytes 0-9/10", 10, None, data[:10]),
            "another whole": (206, full.replace(str(len(data)), "5"), len(data) - begin, None, data[begin:]),
            "another version": (206, full, len(data) - begin, '"new"', data[begin:]),
            "no place": (206, "", len(data) - begin, None, data[begin:]),
            "endless": (200, "", None, None, data * 3), "long": (200, "", 10**15, None, b"x"),
        }[how]
        self.server.lie = "" if status != 200 else how  # the next answer is true; set before anybody can go on
        self.send_response(status)
        for key, value in (("Content-Range", place), ("Content-Length", length), ("ETag", tag)):
            if value not in ("", None):
                self.send_header(key, str(value))
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(sent)
        except OSError:
            pass  # nobody listens any more


@pytest.fixture(scope="module")
def running():
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(running):
    running.files, running.cuts, running.log, running.ranges, running.tags, running.lie = {}, [], [], True, {}, ""
    return running


def source(server, name, content, place=None, **more):
    server.files[name] = content
    values = dict(kind="data set", what="a test", bytes=0, sha256="", licence="none", gated=False)
    return Source("x", address=server.base + name, place=place or f"raw/{name.split('.')[0]}", **{**values, **more})


def sha(content):
    return hashlib.sha256(content).hexdigest()


def get(one, tmp_path, **options):
    return fetch("x", data_root=tmp_path, sources={"x": one}, **{"progress": False, "confirm": True, **options})


def left(tmp_path):
    """Everything on disk but locks and the record."""
    return sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")
                  if p.is_file() and p.name not in (".lock", "fetched.toml"))


# -- downloading


def test_a_file_is_fetched_checked_and_recorded(server, tmp_path):
    one = source(server, "a.json", b"{}", place="raw/set/a.json", sha256=sha(b"{}"), bytes=2)
    assert get(one, tmp_path).read_bytes() == b"{}" and left(tmp_path) == ["raw/set/a.json"]
    entry = read_fetched(tmp_path)["x"]
    assert (entry["sha256"], entry["bytes"], entry["address"]) == (sha(b"{}"), 2, one.address)
    get(one, tmp_path)
    assert len(server.log) == 1, "what is there is not fetched again"


def test_an_archive_of_one_file_becomes_that_file(server, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("objects.json", "[]")
    one = source(server, "objects.json.zip", packed.getvalue(), place="raw/set/objects.json")
    assert get(one, tmp_path).read_bytes() == b"[]" and left(tmp_path) == ["raw/set/objects.json"]


def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", md5=hashlib.md5(CONTENT).hexdigest())
    server.cuts = [300_000, 400_000]
    assert get(one, tmp_path).read_bytes() == CONTENT
    first, second, third = (int(r[6:-1]) if r else 0 for _, r in server.log)
    assert first == 0 and 200_000 < second <= 300_000 and second + 300_000 < third <= second + 400_000


def test_a_later_run_goes_on_too(server, tmp_path, monkeypatch):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", sha256=sha(CONTENT))
    server.cuts = [100_000] * 5
    with pytest.raises(SourceError, match="after 5 tries. What came is kept; run the command again"):
        get(one, tmp_path)
    assert left(tmp_path) == ["raw/downloads/x-big.bin.part", "raw/downloads/x-big.bin.part.tag"]
    assert get(one, tmp_path).read_bytes() == CONTENT and int(server.log[-1][1][6:-1]) > 150_000
    assert left(tmp_path) == ["raw/big.bin"]


def test_a_file_that_changed_meanwhile_is_not_glued_together(server, tmp_path):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin")
    server.cuts = [100_000] * 5
    with pytest.raises(SourceError):
        get(one, tmp_path)
    server.files["big.bin"], server.tags["big.bin"] = CONTENT[::-1], '"new"'
    assert get(one, tmp_path).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", sha256=sha(CONTENT))
    server.cuts, server.ranges = [100_000], False
    assert get(one, tmp_path).read_bytes() == CONTENT


def test_a_whole_part_is_not_fetched_again(server, tmp_path):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", sha256=sha(CONTENT))
    (tmp_path / "raw/downloads").mkdir(parents=True)
    (tmp_path / "raw/downloads/x-big.bin.part").write_bytes(CONTENT)
    (tmp_path / "raw/downloads/x-big.bin.part.tag").write_text('"big.bin-1"')
    assert get(one, tmp_path).read_bytes() == CONTENT and server.log == [("big.bin", f"bytes={len(CONTENT)}-")]


@settings(max_examples=12, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 2**20), max_size=4), st.booleans(), st.booleans())
def test_cuts_anywhere_give_the_same_file(server, tmp_path_factory, cuts, ranges, stated):
    server.cuts, server.ranges, server.log = list(cuts), ranges, []
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", sha256=sha(CONTENT) if stated else "")
    assert get(one, tmp_path_factory.mktemp("cut")).read_bytes() == CONTENT


@pytest.mark.parametrize("how", ["416", "another 416", "begins elsewhere", "another whole", "another version",
                                 "no place"])
def test_a_server_that_lies_about_the_rest_gives_no_other_file(server, tmp_path, how):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin")  # no checksum would show it
    server.cuts, server.lie = [300_000], how
    assert get(one, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in server.log][0] is None and server.log[1][1] and server.log[2][1] is None


def test_a_server_that_never_ends_is_stopped(server, tmp_path, monkeypatch):
    server.lie = "endless"
    with pytest.raises(SourceError, match="more than 1,000,000 bytes came"):
        get(source(server, "big.bin", CONTENT, place="raw/big.bin", bytes=1_000_000), tmp_path)
    monkeypatch.setattr(module, "MAX_UNTOLD_BYTES", 500_000)
    with pytest.raises(SourceError, match="more than 500,000 bytes came"):
        get(source(server, "b.bin", CONTENT, place="raw/b.bin"), tmp_path)
    server.lie = "long"
    with pytest.raises(SourceError, match=r"offers 1,000,000,000,000,000 bytes, the limit is 200,000,000,000"):
        get(source(server, "c.bin", CONTENT, place="raw/c.bin"), tmp_path)
    assert not [name for name in left(tmp_path) if name.startswith("raw/b") or name.startswith("raw/c")]


def test_an_unstated_size_is_agreed_to_once(server, tmp_path):
    one, asked = source(server, "big.bin", CONTENT, place="raw/big.bin"), []

    def said(answer):
        return lambda text: asked.append(text) or answer

    for no in (False, said(False)):
        with pytest.raises(SourceError, match="no source states its size; the server says 1,048,576 bytes.*--yes"):
            get(one, tmp_path, confirm=no)
    assert left(tmp_path) in ([], ["raw/downloads/x-big.bin.part.tag"])
    server.cuts = [1000, 2000, 3000]
    assert get(one, tmp_path, confirm=said(True)).read_bytes() == CONTENT and len(asked) == 2
    stated = source(server, "a.bin", b"ab", place="raw/a.bin", bytes=2, sha256=sha(b"ab"))
    assert get(stated, tmp_path, confirm=said(False)).read_bytes() == b"ab" and len(asked) == 2


def test_where_nothing_can_be_written_nothing_is_fetched(server, tmp_path, monkeypatch):
    one = source(server, "a.json", b"{}", place="raw/set/a.json", bytes=2)
    (tmp_path / "file").write_text("no folder")
    for root, place in ((tmp_path / "file", "raw/a.json"), (tmp_path, "file/a.json"), ("/proc/none", "raw/a.json")):
        with pytest.raises(SourceError, match="cannot be written to .* nothing was fetched"):
            get(Source(**{**vars(one), "place": place}), root)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
    with pytest.raises(SourceError, match="room for 1 bytes, x has 2"):
        get(one, tmp_path)
    assert server.log == []


@pytest.mark.parametrize("more, words", [
    ({"sha256": "0" * 64}, "another checksum than the stated sha256:000"),
    ({"md5": "0" * 32}, "another checksum than the stated md5:000"),
    ({"bytes": 5}, "the server offers 1,048,576 bytes, 5 are stated"),
    ({"bytes": 2**21}, "bytes came, 2,097,152 are stated"),
])
def test_another_file_than_stated_is_deleted(server, tmp_path, more, words):
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", **more)
    with pytest.raises(SourceError, match=words):
        get(one, tmp_path)
    assert not (tmp_path / "raw/big.bin").exists() and not (tmp_path / "raw/downloads/x-big.bin").exists()


def test_without_a_stated_checksum_the_first_fetch_is_remembered(server, tmp_path):
    one = source(server, "a.json", b"first", place="raw/a.json")
    get(one, tmp_path).unlink()
    server.files["a.json"] = b"other"
    with pytest.raises(SourceError, match="another file than on .* To accept it, delete the entry in raw/fetched.toml"):
        get(one, tmp_path)
    assert left(tmp_path) == [] and read_fetched(tmp_path)["x"]["sha256"] == sha(b"first")
    server.files["a.json"] = b"first"
    assert get(one, tmp_path).read_bytes() == b"first"


def test_what_is_not_there(server, tmp_path):
    one = source(server, "a.json", b"")
    server.files.clear()
    with pytest.raises(SourceError, match="404.*Is the address still right"):
        fetch_file(one, tmp_path, progress=False)
    with pytest.raises(SourceError, match="no source 'y'; there are x"):
        fetch("y", data_root=tmp_path, sources={"x": one})
    dead = Source(**{**vars(one), "address": "http://127.0.0.1:9/a.json"})
    with pytest.raises(SourceError, match="after 5 tries"):
        fetch_file(dead, tmp_path, progress=False)


# -- unpacking


def zipped(*entries):
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, *mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = (mode[0] << 16 if mode else 0), zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return out.getvalue()


def tarred(*entries, mode="w:gz"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content, *kind in entries:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), *(kind or (tarfile.REGTYPE, ""))
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("name, archive", [
    ("set.zip", zipped(("set/a.txt", b"a"), ("set/b/c.txt", b"c"), ("__MACOSX/set/._a", b"x"))),
    ("set.zip", zipped(("a.txt", b"a"), ("b/c.txt", b"c"), (".DS_Store", b"x"))),
    ("set.tar.gz", tarred(("./set", b"", tarfile.DIRTYPE, ""), ("./set/a.txt", b"a"), ("./set/b/c.txt", b"c"))),
])
def test_an_archive_becomes_its_place(server, tmp_path, name, archive):
    place = get(source(server, name, archive, place="raw/deep/set", sha256=sha(archive)), tmp_path)
    assert left(tmp_path) == ["raw/deep/set/a.txt", "raw/deep/set/b/c.txt"] and place == tmp_path / "raw/deep/set"
    (place / "a.txt").write_text("mine")
    get(source(server, name, archive, place="raw/deep/set"), tmp_path)
    assert (place / "a.txt").read_text() == "mine", "a filled place is left as it is"


LINK, HARD = (tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "../../outside")
EVIL = {
    "zip climbs": zipped(("ok.txt", b"ok"), ("../../evil.txt", b"x")), "zip absolute": zipped(("/evil.txt", b"x")),
    "zip climbs inside": zipped(("a/../../evil.txt", b"x")), "zip backslash": zipped(("..\\evil.txt", b"x")),
    "zip drive": zipped(("C:/evil.txt", b"x")), "zip link": zipped(("link", b"/etc/passwd", 0o120777)),
    "zip device": zipped(("device", b"", 0o020666)), "zip twice": zipped(("a.txt", b"a"), ("a.txt", b"b")),
    "zip empty part": zipped(("a//evil.txt", b"x")),
    "tar climbs": tarred(("ok.txt", b"ok"), ("../../evil.txt", b"x")), "tar absolute": tarred(("/evil.txt", b"x")),
    "tar link": tarred(("link", b"", *LINK)), "tar hard link": tarred(("link", b"", *HARD)),
    "tar link, then through it": tarred(("dir", b"", tarfile.SYMTYPE, ".."), ("dir/evil.txt", b"x")),
    "tar device": tarred(("device", b"", tarfile.CHRTYPE, "")), "tar fifo": tarred(("pipe", b"", tarfile.FIFOTYPE, "")),
    "tar twice": tarred(("a.txt", b"a"), ("a.txt", b"b")),
}


@pytest.mark.parametrize("kind", EVIL)
def test_an_evil_archive_writes_nothing(server, tmp_path, kind):
    name = "set.zip" if kind.startswith("zip") else "set.tar.gz"
    with pytest.raises(SourceError, match="refused"):
        get(source(server, name, EVIL[kind]), tmp_path / "data")
    assert left(tmp_path) == [f"data/raw/downloads/x-{name}"], "only the archive itself"


def patched(archive, before, after):
    assert before in archive
    return archive.replace(before, after)


def renamed(name):
    """A zip whose entry has this name, which Python's own writer would change."""
    raw = name if isinstance(name, bytes) else name.encode()
    return patched(zipped(("q" * len(raw), b"x")), b"q" * len(raw), raw)


def overlapping():
    """Two entries of a zip that share their bytes."""
    packed = zipped(("a", random.Random(0).randbytes(5000)), ("b", b"x"))
    at = packed.index(b"PK\x01\x02")
    end = packed.index(b"PK\x05\x06")
    one, two = packed[at:end][:47], packed[at:end][47:]
    return packed[:at] + one + one.replace(b"a", b"c") + packed[end:].replace(
        len(one + two).to_bytes(4, "little"), len(one * 2).to_bytes(4, "little"))


def noted(length, mode):
    """A tar with so many bytes of notes before its entry."""
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "x" * length}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    return out.getvalue()


XZ = tarred(("a.txt", CONTENT), mode="w:xz")
HOSTILE = {
    "zip NUL.zip": (renamed(b"a.txt\0.sh"), "wants to write"),
    "zip newline.zip": (renamed("a\n.txt"), "wants to write"),
    "zip escape.zip": (renamed("a\x1b[2J"), "wants to write"), "zip dot.zip": (renamed("."), "wants to write"),
    "zip nameless.zip": (zipped(("", b"x")), "wants to write"),
    "zip 300 letters.zip": (zipped(("n" * 300, b"x")), "wants to write"),
    "zip deep.zip": (zipped(("d/" * 3000 + "a", b"x")), "wants to write"),
    "zip other case.zip": (zipped(("a/B.txt", b"1"), ("A/b.TXT", b"2")), "twice, perhaps in other letters"),
    "zip other form.zip": (zipped(("\u00e9", b"1"), ("e\u0301", b"2")), "twice, perhaps in other letters"),
    "zip encrypted.zip": (patched(zipped(("a", b"x")), b"PK\x01\x02\x14\x03\x14\x00\x00\x00",
                                  b"PK\x01\x02\x14\x03\x14\x00\x01\x00"), "which is encrypted"),
    "zip overlapping.zip": (overlapping(), "lie over each other"),
    "zip method.zip": (patched(zipped(("a", b"x")), b"\x00\x00\x08\x00", b"\x00\x00\x63\x00"), "not a whole zip"),
    "zip file as folder.zip": (zipped(("a", b"1"), ("a/b", b"2")), "cannot be unpacked"),
    "tar surrogate.tar.gz": (tarred(("a\udcff", b"x")), "wants to write"),
    "tar 300 letters.tar": (tarred(("n" * 300, b"x"), mode="w:"), "wants to write"),
    "tar notes.tar.gz": (noted(2**21, "w:gz"), "bytes of names and notes"),
    "tar cut.tar.xz": (XZ[:len(XZ) // 2], "not a whole zip or tar"),
    "tar changed.tar.xz": (XZ[:200] + bytes(40) + XZ[240:], "not a whole zip or tar"),
    "tar cut.tar.bz2": (tarred(("a.txt", CONTENT), mode="w:bz2")[:900], "not a whole zip or tar"),
    "no tar.tar.xz": (b"\xfd7zXZ\x00" + bytes(99), "not a whole zip or tar"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_one_documented_error(tmp_path, name):
    content, words = HOSTILE[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "out" / "in").mkdir(parents=True)
    with pytest.raises(SourceError, match=words) as error:
        unpack(tmp_path / name, tmp_path / "out" / "in")
    assert str(error.value).startswith(name) and len(str(error.value)) < 500 and str(error.value).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == [name, "out"] or len(list(tmp_path.iterdir())) == 2
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["in"]


def test_an_archive_may_unfold_so_far_and_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FREE_BYTES", 10_000)
    for name, content in (("a.zip", zipped(("zeros", bytes(3_000_000)))), ("a.tar.xz", tarred(
            ("zeros", bytes(3_000_000)), mode="w:xz"))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError, match=f"more than {max(10_000, 100 * len(content)):,} bytes"):
            unpack(tmp_path / name, tmp_path / f"{name}.out")
    monkeypatch.setattr(module, "FREE_BYTES", 4_000_000)
    assert unpack(tmp_path / "a.zip", tmp_path / "whole") == 1
    (tmp_path / "empty.zip").write_bytes(zipped(*[(f"{i}", b"") for i in range(9)]))
    with pytest.raises(SourceError, match="or 3 files"):
        unpack(tmp_path / "empty.zip", tmp_path / "empty", max_files=3)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(["a.zip", "a.tar.gz", "a.tar.xz", "a.tar"]), st.integers(0, 10**9),
       st.binary(min_size=1, max_size=4))
def test_a_changed_archive_is_read_or_refused(tmp_path_factory, name, place, bytes_):
    whole = zipped(("a/b.txt", b"hello" * 50)) if name == "a.zip" else tarred(
        ("a/b.txt", b"hello" * 50), mode={"a.tar.gz": "w:gz", "a.tar.xz": "w:xz", "a.tar": "w:"}[name])
    place %= len(whole)
    folder = tmp_path_factory.mktemp("changed")
    (folder / name).write_bytes(whole[:place] + bytes_ + whole[place + len(bytes_):])
    try:
        unpack(folder / name, folder / "out")
    except SourceError as error:
        assert str(error).startswith(name) and len(str(error)) < 500
    assert {p.name for p in folder.iterdir()} <= {name, "out"}


def test_bombs_and_broken_archives(tmp_path):
    def packed(content, name="a"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    bomb = zipped(("zeros", bytes(3_000_000)))
    assert len(bomb) < 10_000
    for content in (bomb, tarred(("zeros", bytes(3_000_000)))):
        with pytest.raises(SourceError, match="more than 1,000,000 bytes"):
            unpack(packed(content), tmp_path / sha(content), max_bytes=1_000_000)
    liar = bomb.replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))  # claims ten bytes
    with pytest.raises(SourceError):
        unpack(packed(liar), tmp_path / "liar", max_bytes=1_000_000)
    assert sum(p.stat().st_size for p in (tmp_path / "liar").rglob("*") if p.is_file()) <= 1_000_000
    with pytest.raises(SourceError, match="or 3 files"):
        unpack(packed(zipped(*[(f"{i}", b"x") for i in range(9)])), tmp_path / "many", max_files=3)
    for i, content in enumerate([b"", b"nothing", bomb[:200], tarred(("a", bytes(9999)))[:60], b"PK\x05\x06"]):
        with pytest.raises(SourceError, match="not a whole zip or tar archive"):
            unpack(packed(content), tmp_path / f"broken{i}")


def test_a_damaged_archive_leaves_nothing(server, tmp_path):
    archive = tarred(("a", CONTENT), ("b", CONTENT[::-1]))
    with pytest.raises(SourceError, match="not a whole zip or tar archive"):
        get(source(server, "set.tar.gz", archive[: len(archive) // 2]), tmp_path)
    assert left(tmp_path) == ["raw/downloads/x-set.tar.gz"]


# -- the list and the command


def test_the_list_of_this_project():
    found = read_sources()
    data = {name: one for name, one in found.items() if one.kind == "data set"}
    assert set(data) == {"flickr30k-entities", "flickr30k-images", "refcoco", "refcoco+", "refcocog", "coco-train2014",
                         "spatialsense", "spatialsense-images", "tricd", "coco-val2017", "coco-test2017", "winoground",
                         "coco", "coco-val2014", "probe-rcb", "ref-adv", "visual-genome", *found["visual-genome"].needs}
    assert all(need in found for one in found.values() for need in one.needs)
    for name, place in NAMES.items():  # what is fetched lies where load_dataset looks
        if not name.startswith("miniworld"):
            assert data[name].place.startswith(place), name
    assert data["coco-train2014"].place == "raw/images/mscoco/images/train2014"
    assert data["flickr30k-images"].by_hand and not data["refcoco+"].by_hand and found["blip-base"].by_library
    for one in found.values():
        steps = manual_steps(one, module.settings.data_root)
        assert steps and not (one.gated and one.address not in " ".join(steps))


@pytest.mark.parametrize("text, words", [("[a]\nkind = 1\n", "entry 'a': missing or unknown: address"),
                                         ("[", "in TOML")])
def test_a_list_that_is_none(tmp_path, text, words):
    (tmp_path / "sources.toml").write_text(text)
    with pytest.raises(SourceError, match=words):
        read_sources(tmp_path / "sources.toml")
    with pytest.raises(SourceError, match="none.toml"):
        read_sources(tmp_path / "none.toml")


GOOD = ('kind = "data set"\nwhat = "w"\naddress = "http://x/a"\nplace = "raw/a"\nbytes = 0\nsha256 = ""\n'
        'licence = "l"\ngated = false\n')


@pytest.mark.parametrize("text, words", [
    (GOOD, "'kind' stands in no entry"),
    ("[a]\n" + GOOD.replace("bytes = 0", "bytes = -1"), "bytes has a value of another"),
    ("[a]\n" + GOOD.replace('"w"', "5"), "what has a value of another kind"),
    ("[a]\n" + GOOD.replace("false", "1"), "gated has a value of another kind"),
    ("[a]\n" + GOOD + "steps = [1]\n", "steps has a value of another kind"),
    ("[a]\n" + GOOD.replace("raw/a", "raw/../../etc"), "a place under the folder"),
    ("[a]\n" + GOOD.replace("raw/a", "/etc"), "a place under the folder"),
    ("[a]\n" + GOOD.replace("raw/a", "C:/etc"), "a place under the folder"),
    ('["../a"]\n' + GOOD, "a plain name"), ("x = " + "[" * 100_000, "in TOML"), ("#" * 5_000_000, "the limit is"),
])
def test_a_hostile_list_is_one_documented_error(tmp_path, text, words):
    (tmp_path / "sources.toml").write_text(text)
    with pytest.raises(SourceError, match=words):
        read_sources(tmp_path / "sources.toml")
    (tmp_path / "sources.toml").write_text("[a]\n" + GOOD)
    assert read_sources(tmp_path / "sources.toml")["a"].place == "raw/a"


@pytest.mark.parametrize("content", [b"*", b"\x83", b"x = 1", b"[x]\nbytes = 1", b"[x]\nsha256 = []\nfetched = 1"])
def test_a_damaged_record_of_fetches_is_one_documented_error(server, tmp_path, content):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "fetched.toml").write_bytes(content)
    with pytest.raises(SourceError, match="fetched.toml"):
        read_fetched(tmp_path)
    with pytest.raises(SourceError, match="fetched.toml"):
        get(source(server, "a.json", b"{}", place="raw/a.json"), tmp_path)


def test_other_addresses_are_not_fetched(tmp_path):
    for address in ("file:///etc/passwd", "ftp://x/a", "/etc/passwd", ""):
        with pytest.raises(SourceError, match="expected an address with http"):
            fetch_file(Source("x", "data set", "", address, "raw/a", 0, "", "", False), tmp_path)


def test_the_command(server, tmp_path, monkeypatch, capsys):
    good = source(server, "set.zip", zipped(("set/annotations.json", b"[]")), needs=("photos",))
    by_hand = Source(**{**vars(good), "name": "photos", "gated": True, "needs": ()})
    bad = Source(**{**vars(good), "sha256": "0" * 64, "place": "raw/bad"})
    lists = {"x": good, "photos": by_hand, "bad": bad}
    monkeypatch.setattr(module, "read_sources", lambda path=None: lists)
    root = ["--data-root", str(tmp_path), "--quiet"]
    assert main(["data", "fetch", "x", *root]) == 1
    assert "no source states its size; the server says 142 bytes" in capsys.readouterr().err
    root.append("--yes")
    assert main(["data", "fetch", "x", *root]) == 0
    out = capsys.readouterr().out
    assert "it also needs photos: qgcam data fetch photos" in out and "here: " in out
    assert main(["data", "fetch", "photos", *root]) == 3
    out = capsys.readouterr().out
    assert re.findall(r"^(\d)\. ", out, re.M) == ["1", "2", "3"] and "agree to its terms" in out
    assert main(["data", "fetch", "bad", *root]) == 1 and "another checksum" in capsys.readouterr().err
    assert main(["data", "fetch", "nothing", *root]) == 2


def test_the_command_verify_shows_expected_counts(tmp_path, capsys):
    (tmp_path / "annotations.json").write_text("[]")
    assert main(["data", "verify", str(tmp_path)]) == 1
    assert "triplets: 0 examples (expected: 1,811)" in capsys.readouterr().out
