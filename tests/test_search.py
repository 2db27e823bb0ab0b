"""The search of the built pages (`make docs`) finds what people look for among its first three results."""

from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[1] / "docs" / "_build" / "html"
FOUND = {  # a question -> what the address of a right page has in it
    "Probe-B": "probe_background", "tie": "02_ties_and_peaks", "score my own maps": "how_to_score_your_own_maps",
    "pointing game": "01_map_scores", "GradCAM": "03_gradcam", "papermill": "guide",
}


@pytest.fixture(scope="module")
def place(serve):
    if not (PAGES / "searchindex.js").is_file():
        pytest.skip("the pages are not built: make docs")
    return serve(PAGES)


@pytest.mark.nightly
@pytest.mark.parametrize("question", FOUND)
def test_the_right_page_is_among_the_first_three(browser, place, question):
    page = browser.new_page()
    page.goto(f"{place}search.html?q={question}")
    page.wait_for_selector("ul.search li a")
    page.wait_for_timeout(500)
    first = [link.get_attribute("href") for link in page.locator("ul.search li > a").all()[:3]]
    page.close()
    assert any(FOUND[question] in address for address in first), first
