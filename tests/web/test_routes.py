"""Every route, taken from the router itself: closed to strangers, to those who may only look, and to other sites."""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.routing import Mount, Route

from oncehook import Inbox
from oncehook.testing import deliver
from oncehook.web.dashboard import Dashboard, actions
from tests.support.dashboard import Site, dashboard_of
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio
PAGES = (
    "/", "/events", "/events/1", "/dead", "/sources", "/audit", "/replay?source=stripe", "/nothing", "/effects",
    "/effects/1", "/effects/replay", "/email", "/email/message", "/email/suppressions",
)  # fmt: skip
STRANGERS = {("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/favicon.ico")}


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(inbox) as site:
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        yield site


def routes(dashboard: Dashboard) -> list[tuple[str, str]]:
    """(method, path) of everything that the router knows, with a value in place of each parameter."""
    found = []
    for route in dashboard.router.routes:
        if isinstance(route, Mount):
            assert route.path == "/static"
            continue
        assert isinstance(route, Route) and route.methods
        path = route.path.replace("{receipt}", "1").replace("{run}", "0" * 16)
        path = path.replace("{effect}", "1").replace("{source}", "stripe")
        found += [(method, path) for method in sorted(route.methods - {"HEAD"})]
    return found


def changing(dashboard: Dashboard) -> list[tuple[str, str]]:
    return [one for one in routes(dashboard) if one[0] != "GET" and one not in STRANGERS]


async def test_a_stranger_is_let_in_nowhere(site: Site) -> None:
    known = routes(site.dashboard)
    assert len(known) > 20
    async with site.browser() as browser:
        for method, path in known:
            for headers in (
                {},
                {"origin": site.address},
                {"authorization": "Bearer wrong"},
                {"cookie": "oncehook_session=x.y"},
            ):
                answer = await browser.request(method, path, headers=headers)
                if (method, path) in STRANGERS:
                    continue
                if answer.status_code == 303:
                    to = answer.headers["location"]
                    assert to.startswith("/sign-in") and method == "GET" and not path.startswith("/api/")
                    assert answer.text == f"This is the Oncehook dashboard. Sign in at {to}\n"
                else:
                    assert answer.status_code == 401, (method, path)
                assert "evt_1" not in answer.text


async def test_whoever_may_only_look_changes_nothing(site: Site, rows: Rows) -> None:
    before = state(rows)
    async with site.signed_in("vera") as browser:
        token = await browser.form_token()
        for method, path in changing(site.dashboard):
            if path == "/sign-out":
                continue
            headers = {"origin": site.address, "x-csrf-token": token}
            data = {"csrf": token} if not path.startswith("/api/") else None
            answer = await browser.request(method, path, headers=headers, data=data)
            assert answer.status_code == 403 and "scope" in answer.text, (method, path)
        assert (await browser.get("/replay?status=failed")).status_code == 403
    async with site.program("reader") as program:
        for method, path in changing(site.dashboard):
            if path.startswith("/api/"):
                assert (await program.request(method, path)).json()["error"]["code"] == "forbidden"
    assert state(rows) == before


async def test_a_token_without_admin_erases_nothing(site: Site, rows: Rows) -> None:
    async with site.program("replayer") as program:
        assert (await program.delete("/api/events/1/payload")).status_code == 403
    assert rows("SELECT count(*) FROM webhook_payloads") == [(1,)]


async def test_get_changes_nothing_whoever_asks(site: Site, rows: Rows) -> None:
    async with site.signed_in("otto") as browser:
        before = state(rows)
        for method, path in routes(site.dashboard):
            if method == "GET" and path != "/live":
                answer = await browser.get(path)
                assert answer.status_code in (200, 303, 404, 422), path
                assert (await browser.head(path)).content == b""
        assert state(rows) == before


def state(rows: Rows) -> list[Any]:
    tables = ("webhook_receipts", "webhook_payloads", "webhook_attempts", "webhook_deliveries", "webhook_pauses",
              "webhook_effects", "webhook_suppressions")  # fmt: skip
    counts = [rows(f"SELECT count(*) FROM {table}") for table in tables]
    return [
        *counts,
        rows("SELECT id, status, replays FROM webhook_receipts"),
        rows("SELECT action FROM webhook_audit WHERE action <> 'sign_in'"),
    ]


async def test_every_action_says_what_it_needs_and_only_reading_is_get() -> None:
    for action in actions():
        assert action.scope is not None or action.path == "/sign-in"
        if action.method != "GET" and action.scope is not None and action.path != "/sign-out":
            assert action.scope in ("replay", "admin"), action.path
    paths = [(action.method, action.path) for action in actions()]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_every_answer_has_the_headers_that_keep_a_browser_from_harm(site: Site) -> None:
    async with site.signed_in("otto") as browser, site.browser() as stranger:
        answers: list[httpx.Response] = [await stranger.get("/"), await stranger.get("/sign-in")]
        answers += [
            await stranger.get("/static/style.css"),
            await stranger.get("/api/events"),
            await browser.get("/nothing"),
        ]
        answers += [
            await browser.get(path) for method, path in routes(site.dashboard) if method == "GET" and path != "/live"
        ]
        answers += [await browser.request("PUT", "/events"), await browser.get("/static/../dashboard.py")]
        answers += [await browser.get("/static/%2e%2e/dashboard.py")]
    for answer in answers:
        headers = answer.headers
        assert (
            "default-src 'self'" in headers["content-security-policy"]
            and "unsafe" not in headers["content-security-policy"]
        )
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        if "/static/" not in str(answer.url):
            assert headers["cache-control"] == "no-store"
        assert answer.status_code < 500 and "import jinja2" not in answer.text


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_no_page_has_a_script_or_style_of_its_own_or_asks_another_host(site: Site) -> None:
    async with site.signed_in("otto") as browser:
        for path in PAGES:
            page = (await browser.get(path)).text
            assert re.findall(r"<script(?! src=\"/static/live\.js\?v=[\w.]+\" defer>)", page) == []
            assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []
            loaded = re.findall(r"<(?:script|img|link|iframe|form)[^>]*\s(?:src|href|action)=\"([^\"]*)\"", page)
            assert loaded and all(address.startswith("/") and not address.startswith("//") for address in loaded)
        for file in ("style.css", "live.js", "icon.svg"):
            text = (await browser.get(f"/static/{file}")).text.replace('xmlns="http://www.w3.org/2000/svg"', "")
            assert not re.search(r"https?://|@import|url\(", text)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_the_door_and_the_probes_need_nobody_and_a_wrong_way_is_told(site: Site) -> None:
    async with site.browser() as stranger:
        assert (await stranger.get("/healthz")).text == "alive\n"
        assert (await stranger.get("/readyz")).text == "ready\n"
        assert (await stranger.post("/webhooks/nothing")).status_code == 404
    async with site.signed_in() as browser:
        wrong = await browser.get("/events/1/replay")
        assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
        lost = await browser.get("/nothing")
        assert lost.status_code == 404 and "This page does not exist." in lost.text
        api = await browser.get("/api/nothing")
        assert api.json() == {"error": {"code": "not_found", "message": "This page does not exist."}}
