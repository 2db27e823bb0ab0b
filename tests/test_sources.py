"""Fetching: checked, unpacked into its folder only. A server on this machine; nothing goes out."""

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qgcam_lib.cli.main import main
from qgcam_lib.data import sources as module
from qgcam_lib.data.sources import DataSource, fetch, read_fetched, read_sources, unpack
from qgcam_lib.errors import SourceError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        """The file of that name; the server's `cuts` says after how many bytes each of the next answers breaks off."""
        server, name = self.server, self.path.strip("/")
        server.log += [name] * body
        if name not in server.files:
            return self.send_error(404)
        data = server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data[:server.cuts.pop(0)] if server.cuts else data)
        self.close_connection = True


@pytest.fixture(scope="module")
def running():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(running):
    running.files, running.log, running.cuts = {}, [], []
    return running


def source(server, name, content, place=None, **more):
    server.files[name] = content
    values = dict(kind="data set", what="a test", sha256="", licence="none", gated=False)
    address = f"http://127.0.0.1:{server.server_port}/{name}"
    return DataSource("x", address=address, place=place or f"raw/{name.split('.')[0]}", **{**values, **more})


def sha(content):
    return hashlib.sha256(content).hexdigest()


def get(one, tmp_path, **options):
    return fetch("x", data_root=tmp_path, sources={"x": one}, **{"progress": False, "confirm": True, **options})


def left(tmp_path):
    """Everything on disk but locks and the record."""
    return sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")
                  if p.is_file() and p.name not in (".lock", "fetched.json"))


# -- downloading


def test_a_file_is_fetched_checked_and_recorded(server, tmp_path):
    one = source(server, "a.json", b"{}", place="raw/set/a.json", sha256=sha(b"{}"))
    assert get(one, tmp_path).read_bytes() == b"{}" and left(tmp_path) == ["raw/set/a.json"]
    entry = read_fetched(tmp_path)["x"]
    assert (entry["sha256"], entry["bytes"], entry["address"]) == (sha(b"{}"), 2, one.address)
    get(one, tmp_path)
    assert len(server.log) == 1, "what is there is not fetched again"


def test_an_archive_of_one_file_becomes_that_file(server, tmp_path):
    one = source(server, "objects.json.zip", zipped(("objects.json", b"[]")), place="raw/set/objects.json")
    assert get(one, tmp_path).read_bytes() == b"[]" and left(tmp_path) == ["raw/set/objects.json"]


def test_a_cut_download_is_tried_again_and_half_a_file_never_stays(server, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", sha256=sha(CONTENT))
    server.cuts = [300_000, 400_000]
    assert get(one, tmp_path).read_bytes() == CONTENT and len(server.log) == 3
    server.cuts = [300_000] * 5
    with pytest.raises(SourceError):
        get(replace(one, place="raw/other"), tmp_path)
    assert left(tmp_path) == ["raw/big.bin"]


def test_the_size_is_agreed_to_once(server, tmp_path):
    one, asked = source(server, "big.bin", CONTENT, place="raw/big.bin"), []

    def said(answer):
        return lambda text: asked.append(text) or answer

    for no in (False, said(False)):
        with pytest.raises(SourceError):
            get(one, tmp_path, confirm=no)
    assert left(tmp_path) == []
    assert get(one, tmp_path, confirm=said(True)).read_bytes() == CONTENT and len(asked) == 2


def test_where_nothing_can_be_written_nothing_is_fetched(server, tmp_path):
    one = source(server, "a.json", b"{}", place="raw/set/a.json")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SourceError, match="data-root"):
        get(one, tmp_path / "file")
    assert server.log == []


@pytest.mark.parametrize("more", [{"sha256": "0" * 64}, {"md5": "0" * 32}])
def test_another_file_than_stated_is_deleted(server, tmp_path, monkeypatch, more):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    one = source(server, "big.bin", CONTENT, place="raw/big.bin", **more)
    with pytest.raises(SourceError):
        get(one, tmp_path)
    assert left(tmp_path) == []


def test_without_a_stated_checksum_the_first_fetch_is_remembered(server, tmp_path):
    one = source(server, "a.json", b"first", place="raw/a.json")
    get(one, tmp_path).unlink()
    server.files["a.json"] = b"other"
    with pytest.raises(SourceError, match="raw/fetched.json"):
        get(one, tmp_path)
    assert left(tmp_path) == [] and read_fetched(tmp_path)["x"]["sha256"] == sha(b"first")
    server.files["a.json"] = b"first"
    assert get(one, tmp_path).read_bytes() == b"first"


def test_what_is_not_there(server, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    one = source(server, "a.json", b"")
    server.files.clear()
    with pytest.raises(SourceError):
        fetch("y", data_root=tmp_path, sources={"x": one})
    for wrong in (one, replace(one, address="http://127.0.0.1:9/a.json"), replace(one, address="file:///etc/passwd")):
        with pytest.raises(SourceError):
            get(wrong, tmp_path)


# -- unpacking


def zipped(*entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
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
    pytest.param("set.tar.gz", tarred(("./set", b"", tarfile.DIRTYPE, ""), ("./set/a.txt", b"a"),
                                      ("./set/b/c.txt", b"c")),
                 marks=pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="tarfile checks from 3.11.4 on")),
])
def test_an_archive_becomes_its_place(server, tmp_path, name, archive):
    place = get(source(server, name, archive, place="raw/deep/set", sha256=sha(archive)), tmp_path)
    assert left(tmp_path) == ["raw/deep/set/a.txt", "raw/deep/set/b/c.txt"] and place == tmp_path / "raw/deep/set"
    (place / "a.txt").write_text("mine")
    get(source(server, name, archive, place="raw/deep/set"), tmp_path)
    assert (place / "a.txt").read_text() == "mine", "a filled place is left as it is"


EVIL = {
    "climbs.zip": zipped(("ok.txt", b"ok"), ("../../evil.txt", b"x")), "absolute.zip": zipped(("/evil.txt", b"x")),
    "climbs.tar.gz": tarred(("ok.txt", b"ok"), ("../../evil.txt", b"x")),
    "link.tar.gz": tarred(("link", b"", tarfile.SYMTYPE, "/etc/passwd")),
    "hard link.tar.gz": tarred(("link", b"", tarfile.LNKTYPE, "../../outside")),
    "link, then through it.tar.gz": tarred(("dir", b"", tarfile.SYMTYPE, ".."), ("dir/evil.txt", b"x")),
    "device.tar.gz": tarred(("device", b"", tarfile.CHRTYPE, "")),
    "empty.zip": b"", "cut.zip": zipped(("a", CONTENT))[:200], "cut.tar.xz": tarred(("a", CONTENT), mode="w:xz")[:90],
    "cut.tar.gz": tarred(("a", CONTENT), ("b", CONTENT[::-1]))[:3000],
}


@pytest.mark.parametrize("name", EVIL)
def test_an_evil_or_damaged_archive_writes_nothing(server, tmp_path, name):
    kind = name.partition(".")[2]
    with pytest.raises(SourceError, match="unpack|outside"):
        get(source(server, f"set.{kind}", EVIL[name]), tmp_path / "data")
    assert left(tmp_path) == [f"data/raw/downloads/x-set.{kind}"], "only the archive itself"


def test_a_python_that_cannot_check_a_tar_archive_refuses_it(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (tmp_path / "set.tar").write_bytes(tarred(("a.txt", b"a"), mode="w"))
    with pytest.raises(SourceError, match="3.11.4"):
        unpack(tmp_path / "set.tar", tmp_path)
    assert left(tmp_path) == ["set.tar"]


def test_an_archive_may_unfold_so_far_and_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FREE_BYTES", 10_000)
    archives = {"a.zip": zipped(("zeros", bytes(3_000_000)))}
    if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
        archives["a.tar.xz"] = tarred(("zeros", bytes(3_000_000)), mode="w:xz")
    for name, content in archives.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError, match=f"at most {max(10_000, 100 * len(content)):,} bytes"):
            unpack(tmp_path / name, tmp_path / f"{name}.out")
    monkeypatch.setattr(module, "FREE_BYTES", 4_000_000)
    unpack(tmp_path / "a.zip", tmp_path / "whole")
    assert (tmp_path / "whole" / "zeros").stat().st_size == 3_000_000


def test_a_zip_that_claims_less_than_it_has_is_refused(tmp_path):
    bomb = zipped(("zeros", bytes(3_000_000)))
    (tmp_path / "a.zip").write_bytes(bomb.replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(SourceError):
        unpack(tmp_path / "a.zip", tmp_path / "liar")
    assert sum(p.stat().st_size for p in (tmp_path / "liar").rglob("*") if p.is_file()) <= 10


# -- the list and the command


GOOD = ('[a]\nkind = "data set"\nwhat = "w"\naddress = "http://x/a"\nplace = "raw/a"\nsha256 = ""\n'
        'licence = "l"\ngated = false\n')


@pytest.mark.parametrize("text", ["[", GOOD + "colour = 1\n", GOOD.replace('"w"', "5")])
def test_a_list_that_is_none(tmp_path, text):
    (tmp_path / "sources.toml").write_text(GOOD)
    assert read_sources(tmp_path / "sources.toml")["a"].place == "raw/a"
    (tmp_path / "sources.toml").write_text(text)
    for name in ("sources.toml", "none.toml"):
        with pytest.raises(SourceError, match=name):
            read_sources(tmp_path / name)


def test_the_command(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    good = source(server, "set.zip", zipped(("set/annotations.json", b"[]")), needs=["photos"])
    by_hand = replace(good, name="photos", gated=True, needs=[])
    bad = replace(good, sha256="0" * 64, place="raw/bad")
    lists = {"x": good, "photos": by_hand, "bad": bad}
    monkeypatch.setattr(module, "read_sources", lambda path=None: lists)
    root = ["--data-root", str(tmp_path), "--quiet"]
    assert main(["data", "fetch", "x", *root]) == 1
    root.append("--yes")
    assert main(["data", "fetch", "x", *root]) == 0
    assert "qgcam data fetch photos" in capsys.readouterr().out
    assert main(["data", "fetch", "photos", *root]) == 3
    assert main(["data", "fetch", "bad", *root]) == 1
    assert main(["data", "fetch", "nothing", *root]) == 2
