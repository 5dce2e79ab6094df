"""Every route of the dashboard, taken from its router: who may call it, its headers, and what it loads."""

import re
from typing import Any

import httpx
import pytest
from starlette.routing import Mount, Route

from oncehook import Inbox
from oncehook.web.dashboard import Dashboard, actions
from tests.support.dashboard import Site, both_databases, send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio
PAGES = (
    "/", "/events", "/events/1", "/dead", "/sources", "/audit", "/replay?source=stripe", "/nothing", "/effects",
    "/effects/1", "/effects/replay", "/email", "/email/message", "/email/suppressions",
)  # fmt: skip
PUBLIC = {("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/favicon.ico")}


@pytest.fixture(autouse=True)
async def one_event(inbox: Inbox) -> int:
    return await send(inbox, "evt_1")


def routes(dashboard: Dashboard) -> list[tuple[str, str]]:
    """The method and path of every route, with a value in place of each parameter."""
    pairs = []
    for route in dashboard.router.routes:
        if isinstance(route, Mount):
            assert route.path == "/static"
            continue
        assert isinstance(route, Route) and route.methods
        path = route.path.replace("{receipt}", "1").replace("{run}", "0" * 16)
        path = path.replace("{effect}", "1").replace("{source}", "stripe")
        pairs += [(method, path) for method in sorted(route.methods - {"HEAD"})]
    return pairs


def changing_routes(dashboard: Dashboard) -> list[tuple[str, str]]:
    return [pair for pair in routes(dashboard) if pair[0] != "GET" and pair not in PUBLIC]


def stored_state(rows: Rows) -> list[Any]:
    """Everything that a request could change."""
    tables = ("webhook_receipts", "webhook_payloads", "webhook_attempts", "webhook_deliveries", "webhook_pauses",
              "webhook_effects", "webhook_suppressions")  # fmt: skip
    counts = [rows(f"SELECT count(*) FROM {table}") for table in tables]
    return [
        *counts,
        rows("SELECT id, status, replays FROM webhook_receipts"),
        rows("SELECT action FROM webhook_audit WHERE action <> 'sign_in'"),
    ]


async def test_client_without_credentials_reaches_no_route(site: Site) -> None:
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
                response = await browser.request(method, path, headers=headers)
                if (method, path) in PUBLIC:
                    continue
                if response.status_code == 303:
                    target = response.headers["location"]
                    assert target.startswith("/sign-in") and method == "GET" and not path.startswith("/api/")
                    assert response.text == f"This is the Oncehook dashboard. Sign in at {target}\n"
                else:
                    assert response.status_code == 401, (method, path)
                assert "evt_1" not in response.text


async def test_viewer_and_read_token_change_nothing(site: Site, rows: Rows) -> None:
    before = stored_state(rows)
    async with site.signed_in("vera") as browser:
        token = await browser.form_token()
        for method, path in changing_routes(site.dashboard):
            if path == "/sign-out":
                continue
            headers = {"origin": site.address, "x-csrf-token": token}
            data = {"csrf": token} if not path.startswith("/api/") else None
            response = await browser.request(method, path, headers=headers, data=data)
            assert response.status_code == 403 and "scope" in response.text, (method, path)
        assert (await browser.get("/replay?status=failed")).status_code == 403
    async with site.program("reader") as program:
        for method, path in changing_routes(site.dashboard):
            if path.startswith("/api/"):
                assert (await program.request(method, path)).json()["error"]["code"] == "forbidden"
    assert stored_state(rows) == before


async def test_token_without_the_admin_scope_cannot_erase(site: Site, rows: Rows) -> None:
    async with site.program("replayer") as program:
        assert (await program.delete("/api/events/1/payload")).status_code == 403
    assert rows("SELECT count(*) FROM webhook_payloads") == [(1,)]


@both_databases
async def test_get_request_never_changes_anything(site: Site, rows: Rows) -> None:
    async with site.signed_in("otto") as browser:
        before = stored_state(rows)
        for method, path in routes(site.dashboard):
            if method == "GET" and path != "/live":
                response = await browser.get(path)
                assert response.status_code in (200, 303, 404, 422), path
                assert (await browser.head(path)).content == b""
        assert stored_state(rows) == before


async def test_every_action_has_a_scope_and_only_get_needs_read() -> None:
    for action in actions():
        assert action.scope is not None or action.path == "/sign-in"
        if action.method != "GET" and action.scope is not None and action.path != "/sign-out":
            assert action.scope in ("replay", "admin"), action.path
    paths = [(action.method, action.path) for action in actions()]
    assert len(set(paths)) == len(paths)


async def test_every_response_has_the_security_headers(site: Site) -> None:
    async with site.signed_in("otto") as browser, site.browser() as stranger:
        responses: list[httpx.Response] = [await stranger.get("/"), await stranger.get("/sign-in")]
        responses += [await stranger.get("/static/style.css"), await stranger.get("/api/events")]
        paths = [path for method, path in routes(site.dashboard) if method == "GET" and path != "/live"]
        for path in ("/nothing", "/static/../dashboard.py", "/static/%2e%2e/dashboard.py", *paths):
            responses.append(await browser.get(path))
        responses.append(await browser.request("PUT", "/events"))
    for response in responses:
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "same-origin"
        if "/static/" not in str(response.url):
            assert response.headers["cache-control"] == "no-store"
        assert response.status_code < 500 and "import jinja2" not in response.text


async def test_pages_have_no_inline_script_or_style_and_load_nothing_from_other_hosts(site: Site) -> None:
    async with site.signed_in("otto") as browser:
        for path in PAGES:
            page = (await browser.get(path)).text
            assert re.findall(r"<script(?! src=\"/static/live\.js\?v=[\w.]+\" defer>)", page) == []
            assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []
            loaded = re.findall(r"<(?:script|img|link|iframe|form)[^>]*\s(?:src|href|action)=\"([^\"]*)\"", page)
            assert loaded and all(url.startswith("/") and not url.startswith("//") for url in loaded)
        for file in ("style.css", "live.js", "icon.svg"):
            text = (await browser.get(f"/static/{file}")).text.replace('xmlns="http://www.w3.org/2000/svg"', "")
            assert not re.search(r"https?://|@import|url\(", text)


async def test_unknown_page_and_wrong_method_are_explained(site: Site) -> None:
    async with site.signed_in() as browser:
        wrong = await browser.get("/events/1/replay")
        assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
        unknown = await browser.get("/nothing")
        assert unknown.status_code == 404 and "This page does not exist." in unknown.text
        api = await browser.get("/api/nothing")
        assert api.json() == {"error": {"code": "not_found", "message": "This page does not exist."}}
        icon = await browser.get("/favicon.ico")
        assert icon.headers["content-type"] == "image/svg+xml"
