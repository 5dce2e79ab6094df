"""Readability: contrast in light and dark, names of controls, small screens, and no layout shifts."""

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Service
from tests.support.email_payloads import SG, sendgrid
from tests.support.servers import run_sql
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("browser")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PATHS = [
    "/", "/events?status=failed", "/dead", "/effects", "/effects/1", "/effects/replay", "/email?by=tag",
    f"/email/message?message={SG}", "/email/suppressions", "/sources", "/audit", "/sign-in", "/replay?source=stripe",
    "/sources/shops/tenants",
]  # fmt: skip

CONTRAST = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, above) => over(above, below), [255, 255, 255, 1]); };
  const poor = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const box = e.getBoundingClientRect();
    if (!box.width || box.right < 0 || e.closest(".unseen, svg, option, noscript, script")) continue;
    const behind = ground(e), text = over(parse(getComputedStyle(e).color), behind);
    const [a, b] = [light(text), light(behind)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`);
  }
  return poor;
}"""

UNNAMED = """() => [...document.querySelectorAll("input:not([type=hidden]), select, button, a, [role], progress")]
  .filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute("aria-label"))
  .map((e) => e.outerHTML.slice(0, 100))"""


SHIFT = (
    "new PerformanceObserver(l => { for (const e of l.getEntries()) window.shift = (window.shift || 0) + e.value; })"
)


NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def shift_of(page: Page) -> float:
    return float(page.evaluate("window.shift || 0"))


@pytest.fixture
def filled(sqlite_service: Service) -> Service:
    for n in range(3):
        sqlite_service.send(f"evt_look_{n}")
        sqlite_service.send(f"evt_look_dead_{n}", "charge.failed", data={"object": {"id": f"card_{n}"}})
    sqlite_service.send("evt_look_mail", "customer.created", data={"object": {"id": "cus_1", "mail": ["jane", "joe"]}})
    sqlite_service.send_email_events(
        sendgrid("delivered"), sendgrid("bounce", type="bounce", reason="550 unknown user")
    )
    wait_until(lambda: bool(sqlite_service.api("/api/email/suppressed")["suppressions"]))
    wait_until(lambda: sqlite_service.api("/api/effects")["counts"]["failed"] > 1)
    run_sql(sqlite_service.database, "INSERT OR IGNORE INTO webhook_pauses (source, actor) VALUES ('calendly', 'jane')")
    return sqlite_service


def everywhere(service: Service) -> list[str]:
    return [*PATHS, f"/events/{service.api('/api/events')['events'][0]['receipt']}"]


def test_every_page_is_stable_readable_named_and_fits_small_screens(filled: Service, open_page: OpenPage) -> None:
    """Visits each page once: layout shifts, heading, language, contrast in both themes, and three widths."""
    page, titles = open_page(filled), set()
    page.add_init_script(f"{SHIFT}.observe({{type: 'layout-shift', buffered: true}})")
    for path in everywhere(filled):
        page.goto(path)
        page.evaluate(NEXT_FRAME)
        assert shift_of(page) < 0.02, f"the layout of {path} must not shift while it loads"
        assert page.evaluate(UNNAMED) == [], path
        assert page.locator("h1").count() == 1 and page.locator("main").count() == 1
        assert page.evaluate("document.documentElement.lang") == "en"
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        titles.add(page.title())
        grounds = set()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST) == [], (path, scheme)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
        for width in (768, 390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
        page.set_viewport_size({"width": 1280, "height": 900})
    assert len(titles) >= 10


@pytest.mark.rest
def test_layout_does_not_shift_when_a_page_updates(filled: Service, open_page: OpenPage) -> None:
    page = open_page(filled)
    page.add_init_script(f"{SHIFT}.observe({{type: 'layout-shift', buffered: true}})")
    page.goto("/")
    before = page.locator(".figure strong").first.inner_text()
    filled.send(f"evt_jump_{before}")
    expect(page.locator(".figure strong").first).not_to_have_text(before)
    assert shift_of(page) < 0.02


@pytest.mark.rest
def test_phone_shows_whole_rows_and_the_navigation_in_one_line(filled: Service, open_page: OpenPage) -> None:
    page = open_page(filled, path="/events?status=failed")
    page.set_viewport_size({"width": 390, "height": 800})
    row = page.locator(".rows tbody tr").first
    for text in ("charge.failed", "stripe", "evt_look_dead_"):
        box = row.get_by_text(text).first.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390, text
    height = row.bounding_box()
    assert height is not None and height["height"] < 80
    for path in ("/dead", "/effects"):
        page.goto(path)
        assert page.evaluate("(s => s.scrollWidth <= s.clientWidth)(document.querySelector('.scroll'))"), path
    page.goto("/dead")
    replay = page.get_by_role("link", name="Replay these").first.bounding_box()
    assert replay is not None and replay["x"] + replay["width"] <= 390
    tops = page.evaluate("[...document.querySelectorAll('.top nav a')].map(a => a.getBoundingClientRect().top)")
    assert len(tops) == 7 and len(set(tops)) == 1
    last = page.get_by_role("link", name="Audit").bounding_box()
    assert last is not None and last["x"] + last["width"] <= 390


@pytest.mark.rest
def test_brand_content_and_footer_share_one_left_edge(filled: Service, open_page: OpenPage) -> None:
    page = open_page(filled)
    for width in (390, 1280, 1900):
        page.set_viewport_size({"width": width, "height": 900})
        edges = page.evaluate(
            """[...document.querySelectorAll(".brand, h1, footer")].map((e) =>
            e.getBoundingClientRect().left + parseFloat(getComputedStyle(e).paddingLeft))"""
        )
        assert max(edges) - min(edges) < 1, (width, edges)


@pytest.mark.rest
def test_placeholders_are_not_cut_off(filled: Service, open_page: OpenPage) -> None:
    page = open_page(filled)
    for path, width in (("/events", 1280), ("/events", 390), ("/effects", 1280), ("/effects", 390)):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path)
        cut = page.evaluate(
            """[...document.querySelectorAll("input[placeholder]")].filter((e) => {
            e.value = e.placeholder; return e.scrollWidth > e.clientWidth; }).map((e) => e.placeholder)"""
        )
        assert cut == [], (path, width)
