"""The ASGI service: the receiver, the probes and the metrics need no sign-in, with and without a dashboard."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from oncehook import Inbox
from oncehook.web.app import Service
from tests.support.dashboard import Site
from tests.support.events import stripe_body, stripe_headers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service without a dashboard."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Service(inbox)), base_url="http://test") as client:
        yield client


async def test_probes_and_receiver_need_no_credentials(site: Site) -> None:
    async with site.browser() as stranger:
        assert (await stranger.get("/healthz")).text == "alive\n"
        assert (await stranger.get("/readyz")).text == "ready\n"
        assert (await stranger.post("/webhooks/nothing")).status_code == 404
        assert (await stranger.get("/metrics", headers={"host": "hooks.internal.example:8000"})).status_code == 200


async def test_delivery_is_accepted_below_webhooks_with_or_without_a_trailing_slash(client: httpx.AsyncClient) -> None:
    for path, status in (("/webhooks/stripe", 202), ("/webhooks/stripe/", 200)):
        body = stripe_body("evt_1")
        assert (await client.post(path, content=body, headers=stripe_headers(body))).status_code == status


async def test_without_a_dashboard_the_root_is_a_static_page_and_all_else_is_404(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200 and "This inbox is running." in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/events", "/api/events", "/sign-in", "/static/style.css"):
        assert (await client.get(path)).status_code == 404
    wrong = await client.post("/healthz")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "GET, HEAD"


async def test_metrics_need_the_token_if_one_is_configured(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(metrics_token="secret-token")
    async with inbox.lifespan():
        transport = httpx.ASGITransport(Service(inbox))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                response = await client.get("/metrics", headers=headers)
                assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
            right = await client.get("/metrics", headers={"authorization": "Bearer secret-token"})
            assert right.status_code == 200 and "# HELP oncehook_received_total" in right.text


async def test_not_ready_while_the_database_is_closed(inbox: Inbox, client: httpx.AsyncClient) -> None:
    await inbox._runtime.store.close()
    response = await client.get("/readyz")
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json()["error"]["message"] == "This process cannot record events now."
    assert (await client.get("/healthz")).status_code == 200, "the process is alive without its database"
    await inbox._runtime.store.open()
    assert (await client.get("/readyz")).status_code == 200


async def test_a_process_that_stops_says_so(inbox: Inbox, client: httpx.AsyncClient) -> None:
    inbox._runtime.readiness.drain()
    response = await client.get("/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json() == {"error": {"code": "unavailable", "message": "This process is stopping."}}


async def test_request_with_several_host_headers_is_rejected(client: httpx.AsyncClient) -> None:
    response = await client.get("/healthz", headers=[("host", "a.example"), ("host", "b.example")])
    assert response.status_code == 400 and "Send exactly one Host header." in response.text
