"""The aiohttp adapter: bodies that are too large, late, broken off or in chunks, other mounts and sockets.

`tests/integrations/frameworks` has what every framework must do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from oncehook import Inbox
from oncehook.integrations.aiohttp import CollectedResponse, setup
from oncehook.model.errors import ConfigurationError
from oncehook.testing.deliveries import DeliveryResponse
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.serve import Wire, connected, request
from tests.support.servers import free_port, run_sql

pytestmark = pytest.mark.anyio

RECEIPTS = "SELECT event_id FROM webhook_receipts ORDER BY id"
BODY = stripe_body("evt_1")
CHUNKED = {"Transfer-Encoding": "chunked"}


@pytest.fixture
def inbox(sqlite: str) -> Inbox:
    inbox = Inbox(sqlite, worker=False, max_body="20kB", receive_timeout="500ms")
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    return inbox


@asynccontextmanager
async def serving(app: web.Application, make_site: Callable[[web.AppRunner], web.BaseSite]) -> AsyncIterator[None]:
    runner = web.AppRunner(app)
    await runner.setup()
    await make_site(runner).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def port(inbox: Inbox) -> AsyncIterator[int]:
    app, port = web.Application(client_max_size=100), free_port()
    setup(app, inbox)
    async with serving(app, lambda runner: web.TCPSite(runner, "127.0.0.1", port)):
        yield port


async def exchange(port: int, sent: bytes) -> DeliveryResponse:
    async with connected(port) as wire:
        await wire.say(sent)
        return await wire.answer()


async def test_body_in_chunks_is_one_body(port: int, sqlite: str) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:7], BODY[7:])) + b"0\r\n\r\n"
    answer = await exchange(port, request("/webhooks/stripe", {**stripe_headers(BODY), **CHUNKED}, None) + chunks)
    assert (answer.status, answer.json["status"]) == (202, "accepted")
    assert run_sql(sqlite, RECEIPTS) == [("evt_1",)]


async def test_body_that_grows_too_large_is_rejected_before_its_end(port: int) -> None:
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    unfinished = request("/webhooks/stripe", {**stripe_headers(b""), **CHUNKED}, None) + chunk * 2
    answer = await exchange(port, unfinished)
    assert (answer.status, answer.json["error"]["code"]) == (413, "too_large")
    assert answer.headers["connection"] == "close"


async def test_body_that_does_not_arrive_in_time_is_rejected(port: int, sqlite: str) -> None:
    answer = await exchange(port, request("/webhooks/stripe", stripe_headers(BODY), BODY)[:-1])
    assert (answer.status, answer.json["error"]["code"]) == (408, "timeout")
    assert run_sql(sqlite, RECEIPTS) == []


async def test_client_that_disconnects_within_its_body_leaves_nothing(port: int, sqlite: str) -> None:
    complete = request("/webhooks/stripe", stripe_headers(BODY), BODY)
    async with connected(port) as wire:
        await wire.say(complete[:-1])
        wire.leave()
    assert (await exchange(port, complete)).status == 202, "the complete delivery is the first"
    assert run_sql(sqlite, RECEIPTS) == [("evt_1",)]


async def test_other_methods_and_paths_are_answered_as_by_asgi(port: int) -> None:
    answer = await exchange(port, request("/webhooks/stripe", {}, b"", method="GET"))
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.headers["content-type"] == "application/json"
    for path in ("/webhooks/", "/webhooks/%73tripes", "/webhooks/stripe/a/b"):
        answer = await exchange(port, request(path, {}, b""))
        assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_source"), path
    answer = await exchange(port, request("/webhooks/%73tripe/?a=b", stripe_headers(BODY), BODY))
    assert answer.status == 202


async def test_sub_app_at_a_unix_socket_has_its_own_prefix(inbox: Inbox, sqlite: str, tmp_path: Path) -> None:
    app, shop, path = web.Application(), web.Application(), str(tmp_path / "socket")
    setup(shop, inbox, prefix="hooks/in/")
    app.add_subapp("/shop", shop)
    async with serving(app, lambda runner: web.UnixSite(runner, path)):
        wire = Wire(*await asyncio.open_unix_connection(path))
        await wire.say(request("/shop/hooks/in/stripe", stripe_headers(BODY), BODY))
        assert (await wire.answer()).status == 202
        wire.leave()
    assert run_sql(sqlite, RECEIPTS) == [("evt_1",)]


def test_inbox_needs_its_own_path(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="prefix is empty"):
        setup(web.Application(), inbox, prefix="/")


async def test_client_that_is_gone_gets_a_closing_response() -> None:
    response = CollectedResponse().make()
    assert response.status == 400 and response.keep_alive is False
