"""The inbox mounted in FastAPI and Starlette apps, and run by uvicorn without an app."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from oncehook import Inbox
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.mounting import uvicorn_client
from tests.support.servers import free_port

pytestmark = pytest.mark.anyio


async def assert_deliveries(client: httpx.AsyncClient, path: str, rows: Rows) -> None:
    """Deliver an event, deliver it again with a trailing slash, and deliver a forged one."""
    body = stripe_body("evt_1")
    first = await client.post(path, content=body, headers=stripe_headers(body))
    again = await client.post(path + "/", content=body, headers=stripe_headers(body))
    forged = await client.post(path, content=body, headers=stripe_headers(body, "whsec_wrong"))
    assert [first.status_code, again.status_code, forged.status_code] == [202, 200, 401]
    assert not again.history
    assert (await client.get(path)).status_code == 405
    assert (await client.post(path + "er", content=body)).status_code == 404
    assert rows("SELECT source, event_id FROM webhook_receipts") == [("stripe", "evt_1")]


@pytest.fixture
def idle_inbox(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_inbox_mounted_in_fastapi_accepts_deliveries(idle_inbox: Inbox, rows: Rows) -> None:
    app = FastAPI(lifespan=idle_inbox.lifespan)
    app.mount("/webhooks", idle_inbox)

    @app.get("/own")
    async def own() -> dict[str, str]:
        return {"page": "own"}

    async with uvicorn_client(app) as client:
        await assert_deliveries(client, "/webhooks/stripe", rows)
        assert (await client.get("/own")).json() == {"page": "own"}


async def test_inbox_mounted_in_fastapi_behind_a_proxy_prefix_accepts_deliveries(idle_inbox: Inbox, rows: Rows) -> None:
    app = FastAPI(lifespan=idle_inbox.lifespan)
    app.mount("/deep/webhooks", idle_inbox)
    async with uvicorn_client(app, root_path="/api") as client:
        await assert_deliveries(client, "/deep/webhooks/stripe", rows)


@pytest.mark.parametrize(("root", "path"), [("/api", "/api"), ("/api", ""), ("/api/", "")])
async def test_inbox_mounted_in_an_app_with_a_root_path_accepts_deliveries(
    idle_inbox: Inbox, rows: Rows, root: str, path: str
) -> None:
    """As by FastAPI's own `root_path`: the server leaves the path alone, and the proxy may have shortened it."""
    app = FastAPI(lifespan=idle_inbox.lifespan)
    app.mount("/webhooks", idle_inbox)

    async def with_root_path(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "root_path": root}, receive, send)

    async with uvicorn_client(with_root_path) as client:
        await assert_deliveries(client, f"{path}/webhooks/stripe", rows)


async def test_inbox_mounted_in_starlette_with_its_own_lifespan_accepts_deliveries(
    idle_inbox: Inbox, rows: Rows
) -> None:
    order = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        order.append("own before")
        async with idle_inbox.lifespan(app):
            yield
        order.append("own after")

    async def own(request: Request) -> JSONResponse:
        return JSONResponse({"page": "own"})

    app = Starlette(routes=[Route("/own", own), Mount("/hooks", idle_inbox)], lifespan=lifespan)
    async with uvicorn_client(app) as client:
        await assert_deliveries(client, "/hooks/stripe", rows)
        assert (await client.get("/own")).json() == {"page": "own"}
    assert order == ["own before", "own after"]


async def test_inbox_without_an_app_runs_under_uvicorn(idle_inbox: Inbox, rows: Rows) -> None:
    async with uvicorn_client(idle_inbox) as client:
        await assert_deliveries(client, "/stripe", rows)
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(1,)]  # it drained when it stopped


async def test_inbox_that_cannot_start_reports_the_error_to_the_server() -> None:
    inbox = Inbox(f"postgresql://127.0.0.1:{free_port()}/nowhere")
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    await inbox({"type": "lifespan"}, receive, send)
    ((kind, message),) = [(m["type"], m["message"]) for m in said]
    assert kind == "lifespan.startup.failed" and "cannot be reached" in message


async def test_inbox_starts_again_after_a_stop(idle_inbox: Inbox, rows: Rows) -> None:
    for number in range(2):
        async with uvicorn_client(idle_inbox) as client:
            body = stripe_body(f"evt_{number}")
            assert (await client.post("/stripe", content=body, headers=stripe_headers(body))).status_code == 202
    assert rows("SELECT count(*) FROM webhook_receipts") == [(2,)]


async def test_mounted_inbox_that_is_not_started_responds_503(idle_inbox: Inbox) -> None:
    app = FastAPI()
    app.mount("/webhooks", idle_inbox)
    body = stripe_body()
    async with uvicorn_client(app) as client:
        answer = await client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
    assert answer.status_code == 503 and answer.headers["retry-after"]
