"""The dashboard mounted in another app: links, sign-in, API and streams below the mount path."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from oncehook import Event, Inbox
from oncehook.model.errors import ConfigurationError
from tests.support.dashboard import CONFIGURED, PASSWORD
from tests.support.events import stripe_body, stripe_headers
from tests.support.mounting import uvicorn_client
from tests.support.serve import process, write_config

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox._runtime.configuration = replace(inbox._runtime.configuration, dashboard=CONFIGURED)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None: ...

    return inbox


def mounted(inbox: Inbox) -> FastAPI:
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/hooks-admin", inbox.dashboard)
    app.mount("/hooks", inbox)
    return app


async def sign_in(client: httpx.AsyncClient, prefix: str = "/hooks-admin") -> httpx.Response:
    headers = {"origin": str(client.base_url).rstrip("/")}
    fields = {"name": "otto", "password": PASSWORD, "next": "/events?type=invoice.paid"}
    return await client.post(f"{prefix}/sign-in", data=fields, headers=headers)


async def send(client: httpx.AsyncClient, event_id: str, secret: str = "whsec_test") -> httpx.Response:
    body = stripe_body(event_id)
    return await client.post("/hooks/stripe", content=body, headers=stripe_headers(body, secret))


async def test_links_redirects_cookies_and_forms_stay_below_the_mount_path(shop: Inbox) -> None:
    async with uvicorn_client(mounted(shop)) as client:
        receipt = (await send(client, "evt_1")).json()["receipt"]
        stranger = await client.get("/hooks-admin/events?type=a")
        assert (stranger.status_code, stranger.headers["location"]) == (
            303,
            "/hooks-admin/sign-in?next=/events%3Ftype%3Da",
        )
        assert "Sign in at /hooks-admin/sign-in" in stranger.text
        signed_in = await sign_in(client)
        assert signed_in.headers["location"] == "/hooks-admin/events?type=invoice.paid"
        assert "; Path=/hooks-admin;" in signed_in.headers["set-cookie"]
        for path in ("", "events", "dead", "effects", "sources", "audit", f"events/{receipt}", "nowhere"):
            page = await client.get(f"/hooks-admin/{path}")
            links = re.findall(r' (?:href|action|src)="(/[^"]*)"', page.text)
            posted = set(re.findall(r' method="post"[^>]* action="([^"]*)"', page.text))
            assert links and all(link.startswith("/hooks-admin/") for link in links), path
            for link in set(links) - posted:
                assert (await client.get(link.replace("&amp;", "&"))).status_code < 400, link
        csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert csrf is not None
        origin = {"origin": str(client.base_url).rstrip("/")}
        fields = {"csrf": csrf[1]}
        paused = await client.post("/hooks-admin/sources/stripe/pause", data=fields, headers=origin)
        assert paused.headers["location"] == "/hooks-admin/sources?done=paused#source-stripe"
        foreign = {"origin": "https://elsewhere.example"}
        foreign_post = await client.post("/hooks-admin/sources/stripe/resume", data=fields, headers=foreign)
        assert foreign_post.status_code == 403 and "not sent from a page of this dashboard" in foreign_post.text


async def test_sources_page_shows_the_mounted_receiver_and_its_rejections(shop: Inbox) -> None:
    async with uvicorn_client(mounted(shop)) as client:
        assert (await send(client, "evt_1")).status_code == 202
        assert (await send(client, "evt_2", "whsec_wrong")).status_code == 401
        await sign_in(client)
        page = (await client.get("/hooks-admin/sources")).text
        assert f"{client.base_url}/hooks/stripe" in page
        assert "bad_signature" in page


async def test_api_accepts_tokens_below_the_mount_path(shop: Inbox) -> None:
    async with uvicorn_client(mounted(shop)) as client:
        await send(client, "evt_1")
        response = await client.get("/hooks-admin/api/events", headers={"authorization": "Bearer token-of-reader"})
        assert [event["event_id"] for event in response.json()["events"]] == ["evt_1"]
        stranger = await client.get("/hooks-admin/api/events")
        assert (stranger.status_code, stranger.json()["error"]["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("is_in_path", [True, False])
async def test_prefix_of_a_proxy_is_part_of_every_link(shop: Inbox, is_in_path: bool) -> None:
    app = mounted(shop)

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "root_path": "/shop", "path": ("/shop" if is_in_path else "") + scope["path"]}
        await app(scope, receive, send)

    async with uvicorn_client(behind) as client:
        signed_in = await sign_in(client)
        assert signed_in.headers["location"].startswith("/shop/hooks-admin/events")
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        page = (await client.get("/hooks-admin/sources", headers={"cookie": cookie})).text
        assert 'href="/shop/hooks-admin/static/style.css' in page
        assert f"{client.base_url}/shop/hooks/stripe" in page


async def test_dashboard_can_be_mounted_at_the_root_of_a_starlette_app(shop: Inbox) -> None:
    routes = [Mount("/hooks", shop), Mount("/", shop.dashboard)]
    async with uvicorn_client(Starlette(routes=routes, lifespan=shop.lifespan)) as client:
        assert (await sign_in(client, "")).headers["location"] == "/events?type=invoice.paid"
        assert (await client.get("/events")).status_code == 200


async def read_stream(client: httpx.AsyncClient, until: str, headers: dict[str, str] | None = None) -> str:
    """Read the stream to its end, and again as a browser does, until it contains a text. Returns what came last."""
    while True:
        text = (await client.get("/hooks-admin/live", headers=headers)).text
        if until in text:
            return text


async def test_stream_ends_by_itself_so_that_the_server_of_the_app_can_stop(
    shop: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.web.mounted.STREAM_SECONDS", 0.3)
    monkeypatch.setattr("oncehook.web.live.POLL_SECONDS", 0.05)
    async with uvicorn_client(mounted(shop)) as client:
        await sign_in(client)
        async with asyncio.timeout(60):
            first = await read_stream(client, until="\nid: ")
            assert "event: changed" not in first
            seen = first.rpartition("id: ")[2].splitlines()[0]
            await send(client, "evt_1")
            await read_stream(client, until="event: changed", headers={"last-event-id": seen})


async def test_inbox_does_not_start_without_a_configured_user(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    app = mounted(inbox)
    with pytest.raises(ConfigurationError, match=r"no user or token is configured. Run `oncehook access NAME`"):
        await inbox.start()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/hooks-admin/")).status_code == 503


async def test_dashboard_stays_unavailable_if_the_inbox_fails_to_start(shop: Inbox) -> None:
    app = mounted(shop)
    shop.on("strip", "*")(lambda event: None)
    with pytest.raises(ConfigurationError, match="strip"):
        await shop.start()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/hooks-admin/sign-in")).status_code == 503


async def test_mounted_dashboard_does_not_start_under_a_command_that_serves_its_own(shop: Inbox) -> None:
    shop._runtime.is_mounted = False
    async with shop.lifespan():
        transport = httpx.ASGITransport(shop.dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/sign-in")).status_code == 503


async def test_session_key_is_read_when_the_inbox_starts(shop: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_SESSION_KEY", raising=False)
    dashboard = {**CONFIGURED, "session_key": "env:SHOP_SESSION_KEY"}
    shop._runtime.configuration = replace(shop._runtime.configuration, dashboard=dashboard)
    app = mounted(shop)
    with pytest.raises(ConfigurationError, match=r"dashboard\.session_key is empty: set SHOP_SESSION_KEY"):
        await shop.start()
    monkeypatch.setenv("SHOP_SESSION_KEY", "a long and random text")
    async with uvicorn_client(app) as client:
        assert (await sign_in(client)).status_code == 303


async def test_dashboard_can_be_created_while_the_inbox_runs(shop: Inbox) -> None:
    async with shop.lifespan():
        transport = httpx.ASGITransport(shop.dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/sign-in")).status_code == 200
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/sign-in")).status_code == 503


HOOKS = """
from oncehook import Inbox

inbox = Inbox()

@inbox.on("stripe", "*")
async def handle(event): ...

mounted_elsewhere = inbox.dashboard
"""


@pytest.mark.system
def test_serve_needs_no_configured_user_for_a_mounted_dashboard(tmp_path: Path, database: str) -> None:
    config = write_config(tmp_path, database)
    (tmp_path / "hooks.py").write_text(HOOKS)
    with process(config, app="hooks:inbox", cwd=tmp_path) as service:
        assert httpx.get(f"http://127.0.0.1:{service.port}/readyz", timeout=30).status_code == 200
