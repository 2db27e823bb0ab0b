"""What every test starts from: no settings from the shell, no model hub, no user start-up files, few threads."""

import os
import shutil

import pytest

for _name in [name for name in os.environ if name.startswith("QGCAM_")]:
    del os.environ[_name]
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")
os.environ.pop("PYTHONSTARTUP", None)


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
