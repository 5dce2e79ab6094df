"""The documentation site builds without a warning, has every page, and loads nothing from other hosts."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs import site
from tests.support import ROOT
from tests.support.documentation import PAGES

REQUEST = re.compile(r'<(?:script|img|iframe|source|link(?![^>]*rel="canonical"))\b[^>]*?\b(?:src|href)="(https?:)?//')
"""A tag that makes the reader's browser call another host as soon as the page is shown."""


pytestmark = pytest.mark.xdist_group("docs_site")  # built once


@pytest.fixture(scope="module")
def built(docs_site: Path) -> dict[str, str]:
    """The pages of the site: path → HTML."""
    return {file.relative_to(docs_site).as_posix(): file.read_text("utf-8") for file in docs_site.rglob("*.html")}


def test_every_page_is_in_the_navigation() -> None:
    pages = set(site.site_pages())
    expected = {name for name in PAGES if name.startswith("docs/")} | {"CONTRIBUTING.md", "CHANGELOG.md"}
    assert sorted(expected - pages) == [], "add a row to a section of docs/README.md"


def test_navigation_has_a_place_for_each_kind_of_page() -> None:
    titles = [section.title for section in site.sections()]
    assert titles == ["Start", "Guides", "Reference", "Explanation", "Project"]
    assert [section.title for section in site.sections() if not section.paths()] == []


@pytest.mark.rest
def test_site_has_every_page_and_every_link_resolves(built: dict[str, str]) -> None:
    assert {site.site_path(page).removesuffix(".md") for page in site.site_pages() if "README" not in page} <= {
        path.removesuffix(".html") for path in built
    }
    broken = [f"{page}: {link}" for page, html in built.items() for link in internal_links(html) if page != "404.html"
              if not resolves(page, link, built)]  # fmt: skip
    assert broken == []


def internal_links(html: str) -> list[str]:
    links = re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', html)
    return [unescape(link) for link in links if not re.match(r"[a-z]+:", link)]


def resolves(page: str, link: str, built: dict[str, str]) -> bool:
    path, _, anchor = unquote(link).partition("#")
    target = (Path("/") / page).parent / path if path else Path("/") / page
    name = target.resolve().as_posix().removeprefix("/")
    name = f"{name}/index.html".lstrip("/") if not name.endswith((".html", ".png", ".svg", ".js", ".css")) else name
    return name in built and (not anchor or f'id="{anchor}"' in built[name] or anchor == "__skip")


@pytest.mark.rest
def test_page_loads_nothing_from_other_hosts(built: dict[str, str]) -> None:
    assert [page for page, html in built.items() if REQUEST.search(html)] == []
    assert [page for page, html in built.items() if 'class="mermaid"' in html] == [], "mermaid is loaded from a CDN"


def test_link_to_a_file_outside_the_site_leads_to_the_repository() -> None:
    paths = {"docs/ack.md": "ack.md", "docs/README.md": "index.md"}
    text = "[a](ack.md#codes) [b](../Makefile) [c](../deploy/kubernetes) `[d](gone.md)`\n```\n[e](gone.md)\n```\n"
    assert site.map_links(text, "docs/README.md", paths) == (
        f"[a](ack.md#codes) [b]({site.REPOSITORY}/blob/main/Makefile) "
        f"[c]({site.REPOSITORY}/tree/main/deploy/kubernetes) `[d](gone.md)`\n```\n[e](gone.md)\n```\n"
    )


@pytest.mark.parametrize("link", ["gone.md", "../../outside.md"])
def test_link_to_a_missing_file_is_an_error(link: str) -> None:
    with pytest.raises(site.BrokenLink, match=re.escape(link)):
        site.map_links(f"[a]({link})", "docs/README.md", {})


def test_warning_of_the_site_generator_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An anchor that does not exist, which only the generator checks."""
    monkeypatch.setattr(site, "site_pages", lambda: [site.INDEX])
    monkeypatch.setattr(site, "sections", list)
    monkeypatch.setattr(site, "map_links", lambda text, page, paths: "# Page\n\n[a](#no-such-heading)\n")
    with pytest.raises(site.BuildFailed, match="no-such-heading"):
        site.build(tmp_path / "build")


def test_settings_of_the_site_name_the_repository_of_the_project() -> None:
    assert site.REPOSITORY in (ROOT / "docs" / "site.yml").read_text("utf-8")
