"""The receiver as an ASGI app: disconnects, cancelled requests, deadlines, and the address behind a proxy."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.testing import deliver, post, sign
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.waiting import eventually, next_turn

pytestmark = pytest.mark.anyio


COUNT = "SELECT count(*) FROM webhook_receipts"


async def test_a_request_that_is_cancelled_after_its_body_still_has_its_event_recorded(
    inbox: Inbox, rows: Rows
) -> None:
    delivering = asyncio.create_task(deliver(inbox, "stripe", stripe_body("evt_1")))
    for _ in range(3):  # until the claim is submitted
        await next_turn()
    delivering.cancel()
    await asyncio.wait([delivering])
    assert delivering.cancelled()
    await inbox._runtime.reception.claimer.drain()
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


async def test_a_client_that_disconnects_before_its_body_is_complete_leaves_no_receipt(
    inbox: Inbox, rows: Rows
) -> None:
    body = stripe_body()
    messages: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": body[:20], "more_body": True},
            {"type": "http.request", "body": body[20:], "more_body": True},  # complete, but the server cannot know
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: object) -> None:
        raise AssertionError("no response may be sent after a disconnect")

    headers = [(n.lower().encode(), v.encode()) for n, v in stripe_headers(body).items()]
    await inbox({"type": "http", "method": "POST", "path": "/stripe", "headers": headers}, receive, send)
    assert rows(COUNT) == [(0,)]


async def test_a_body_without_its_declared_length_is_rejected(inbox: Inbox, rows: Rows) -> None:
    body = stripe_body()
    answer = await post(inbox, "stripe", body, {**stripe_headers(body), "Content-Length": "7"})
    assert answer.outcome == (400, "malformed") and rows(COUNT) == [(0,)]


async def test_a_rejection_sample_has_the_names_of_the_query(inbox: Inbox, rows: Rows) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: object) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/stripe", "headers": [], "query_string": b"token=secret&page=2"}
    await inbox(scope, receive, send)
    query = "SELECT query FROM webhook_rejections"
    await eventually(lambda: rows(query) == [("token=…&page=…",)], "the sample has the names and not the values")


async def test_signed_address_is_the_one_that_a_trusted_proxy_reports(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(trusted_proxies=["10.0.0.1"])
    inbox.source("square", secrets=["square-secret"])
    body = b'{"event_id": "evt_1", "type": "payment.updated"}'
    headers = sign("square", body, "square-secret", public_url="https://shop.example/square")
    proxied = {**headers, "x-forwarded-proto": "https", "x-forwarded-host": "shop.example"}
    async with inbox.lifespan():
        assert (await post(inbox, "square", body, proxied, peer="203.0.113.9")).status == 401, "an unlisted peer"
        assert (await post(inbox, "square", body, headers, peer="10.0.0.1")).status == 401, "no reported address"
        assert rows(COUNT) == [(0,)]
        assert (await post(inbox, "square", body, proxied, peer="10.0.0.1")).status == 202
    assert rows("SELECT event_id FROM webhook_receipts") == [("evt_1",)]


async def status_of_incomplete_delivery(inbox: Inbox) -> int:
    """The status of a delivery whose body never arrives."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    async with inbox.lifespan():
        await asyncio.wait_for(
            inbox({"type": "http", "method": "POST", "path": "/stripe", "headers": []}, receive, send), 5
        )
    return statuses[0]


def test_an_inbox_that_starts_in_another_loop_still_times_out_bodies(make_inbox: Callable[..., Inbox]) -> None:
    """Tests of an app often use a new event loop for each client."""
    inbox = make_inbox(receive_timeout="200ms")
    inbox.source("stripe", secrets=["whsec_test"])

    async def take_one() -> int:
        async with inbox.lifespan():
            return (await deliver(inbox, "stripe", stripe_body())).status

    assert [asyncio.run(take_one()), asyncio.run(status_of_incomplete_delivery(inbox)), asyncio.run(take_one())] == [
        202,
        408,
        200,
    ]
