"""Fetching: resumed, checked, unpacked into its folder only. A server on this machine; nothing goes out."""

import hashlib
import io
import re
import tarfile
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qgcam_lib.cli.main import main
from qgcam_lib.data import sources as module
from qgcam_lib.data.catalog import NAMES
from qgcam_lib.data.sources import Source, fetch, fetch_file, manual_steps, read_fetched, read_sources, unpack
from qgcam_lib.errors import SourceError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    """files: what it has. cuts: after how many bytes each of the next answers breaks off. log: what was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.log, self.ranges, self.tags = {}, [], [], True, {}
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


@pytest.fixture(scope="module")
def running():
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(running):
    running.files, running.cuts, running.log, running.ranges, running.tags = {}, [], [], True, {}
    return running


def source(server, name, content, place=None, **more):
    server.files[name] = content
    values = dict(kind="data set", what="a test", bytes=0, sha256="", licence="none", gated=False)
    return Source("x", address=server.base + name, place=place or f"raw/{name.split('.')[0]}", **{**values, **more})


def sha(content):
    return hashlib.sha256(content).hexdigest()


def get(one, tmp_path, **options):
    return fetch("x", data_root=tmp_path, sources={"x": one}, progress=False, **options)


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


@pytest.mark.parametrize("more, words", [
    ({"sha256": "0" * 64}, "another checksum than the stated sha256:000"),
    ({"md5": "0" * 32}, "another checksum than the stated md5:000"), ({"bytes": 5}, "more than 5 bytes came"),
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


@pytest.mark.parametrize("text, words", [("[a]\nkind = 1\n", "entry a: missing or unknown: address"), ("[", "in TOML")])
def test_a_list_that_is_none(tmp_path, text, words):
    (tmp_path / "sources.toml").write_text(text)
    with pytest.raises(SourceError, match=words):
        read_sources(tmp_path / "sources.toml")
    with pytest.raises(SourceError, match="none.toml"):
        read_sources(tmp_path / "none.toml")


def test_the_command(server, tmp_path, monkeypatch, capsys):
    good = source(server, "set.zip", zipped(("set/annotations.json", b"[]")), needs=("photos",))
    by_hand = Source(**{**vars(good), "name": "photos", "gated": True, "needs": ()})
    bad = Source(**{**vars(good), "sha256": "0" * 64, "place": "raw/bad"})
    lists = {"x": good, "photos": by_hand, "bad": bad}
    monkeypatch.setattr(module, "read_sources", lambda path=None: lists)
    root = ["--data-root", str(tmp_path), "--quiet"]
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
