"""What every test starts from: no settings from the shell, no model hub, no user start-up files, few threads."""

import json
import os
import shutil
import threading
import time
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

for _name in [name for name in os.environ if name.startswith("QGCAM_")]:
    del os.environ[_name]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")
os.environ.pop("PYTHONSTARTUP", None)


def pytest_terminal_summary(terminalreporter):
    """What moved without failing: tests/test_golden.py records it."""
    moved = [text for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())
             for name, text in report.user_properties if name == "moved" and report.when == "call"]
    if moved:
        terminalreporter.section("moved against the stored numbers")
        terminalreporter.write_line("\n".join(moved))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:  # one that opens pages in a browser runs at night, but for those marked every_push
        if "browser" in item.fixturenames and not item.get_closest_marker("every_push"):
            item.add_marker("nightly")


def pytest_collection_finish(session):
    session.config.end = time.monotonic() + float(os.environ.get("CHECK_SECONDS") or "inf")


def pytest_runtest_setup(item):
    if time.monotonic() > item.config.end:
        pytest.skip("the time of make check is over; make test runs it")
    if item.get_closest_marker("gpu") and not __import__("torch").cuda.is_available():
        pytest.skip("needs a GPU, and torch finds none")


@pytest.fixture(scope="module")
def one_thread():
    """Sums in the same order whatever number of threads an earlier test has left."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser():
    """Chromium through Playwright; tests that ask for it are skipped where one of the two is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as session:
        browser = session.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_): pass


@pytest.fixture(scope="module")
def serve():
    """Serve a folder on this machine; the address."""
    with ExitStack() as stack:
        def address(folder):
            server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}/"

        yield address


@pytest.fixture
def show(browser, tmp_path):
    """Write explorers to a file, open it; at the end: no error in the page, and nothing was asked of anybody."""
    opened = []

    def opens(*explorers, **options):
        file, errors, asked = tmp_path / f"{len(opened)}.html", [], []
        file.write_text("<!doctype html><meta charset='utf-8'>" + "".join(map(str, explorers)), encoding="utf-8")
        page = browser.new_page(**options)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        opened.append((page, file, errors, asked))
        return page

    yield opens
    for page, file, errors, asked in opened:
        assert not errors and all(url == file.as_uri() or url.startswith("data:") for url in asked)
        page.close()


_MODEL = """async ([esm, state]) => {
  const listeners = {}, model = {
    get: name => state[name],
    set(name, value) { if (JSON.stringify(state[name]) === JSON.stringify(value)) return;
      state[name] = value; for (const f of listeners["change:" + name] || []) f(); },
    on(name, f) { (listeners[name] ||= []).push(f); },
    off() {},
    async save_changes() { const back = await window.kernel(JSON.stringify(state));
      for (const [name, value] of Object.entries(JSON.parse(back))) model.set(name, value); },
  };
  const module = await import("data:text/javascript;base64," + btoa(unescape(encodeURIComponent(esm))));
  window.model = model;
  module.default.render({model, el: document.body.appendChild(document.createElement("div"))});
}"""


@pytest.fixture
def put_on():
    """A front end for a widget on one page: traits go to the page and come back, as Jupyter sends them."""
    return _put_on


def _put_on(page, widget, names):
    shown = [*names, "scores", "_body", "_facts", "_answer"]

    def kernel(state):
        widget.set_state({name: value for name, value in json.loads(state).items() if name in names})
        return json.dumps({name: getattr(widget, name) for name in shown})

    page.expose_function("kernel", kernel)
    page.evaluate(_MODEL, [widget._esm, {name: getattr(widget, name) for name in shown}])
