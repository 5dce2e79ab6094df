"""The documentation site, opened as files in a browser, at the widths of a desktop and a phone."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

PAGES = ["index", "tutorial", "step-by-step", "python", "comparison", "settings", "providers", "exactly-once"]


pytestmark = pytest.mark.xdist_group("docs_site")  # built once


def open_page(browser: Browser, width: int) -> tuple[Page, list[str]]:
    """Return a page of this width, and the list of its errors and of its requests to other hosts."""
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    problems: list[str] = []
    page.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    return page, problems


@pytest.mark.rest
@pytest.mark.parametrize("width", [1280, 390])
def test_page_of_the_site_fits_the_window_and_loads_nothing_else(
    chromium: Browser, docs_site: Path, width: int
) -> None:
    page, problems = open_page(chromium, width)
    for name in PAGES:
        page.goto((docs_site / f"{name}.html").as_uri())
        overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, f"{name} is {overflow} px too wide at {width} px"
    assert problems == []


@pytest.mark.rest
def test_search_works_without_a_server(chromium: Browser, docs_site: Path) -> None:
    page, problems = open_page(chromium, 1280)
    page.goto((docs_site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    search = page.get_by_placeholder("Search")
    expect(search).to_be_focused()
    search.press_sequentially("dead letters")
    expect(search).to_have_value("dead letters")
    page.get_by_role("option", name="Dead letters").first.click()
    expect(page.get_by_role("heading", name="Dead letters").first).to_be_visible()
    assert problems == []
