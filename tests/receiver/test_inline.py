"""Inline mode: the handler runs before the ack, and the provider's redelivery is the next attempt."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.testing import post
from oncehook.worker.rescue import ABANDONED
from tests.support.events import stripe_body, stripe_headers
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


BODY = stripe_body("evt_1")


STATES = "SELECT event_id, status, attempts FROM webhook_receipts ORDER BY id"


async def send(inbox: Inbox, event_id: str = "evt_1") -> tuple[int, str]:
    body = stripe_body(event_id)
    return (await post(inbox, "stripe", body, stripe_headers(body))).outcome


def inline_inbox(make_inbox: Callable[..., Inbox], **settings: Any) -> Inbox:
    inbox = make_inbox(worker=True, lease="5s")
    inbox.source("stripe", secrets=["whsec_test"], mode="inline", **settings)
    return inbox


async def send_until_handled(inbox: Inbox, go_on: asyncio.Event) -> asyncio.Task[tuple[int, str]]:
    """Send an event, and return when its handler runs. The handler waits for `go_on`."""
    inside = asyncio.Event()

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        inside.set()
        await go_on.wait()

    task = asyncio.create_task(send(inbox))
    await asyncio.wait_for(inside.wait(), 10)
    return task


async def test_the_handler_runs_before_the_ack(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox = inline_inbox(make_inbox)
    seen: list[str] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        seen.append(event.id)

    async with inbox.lifespan():
        assert await send(inbox) == (200, "processed")
        assert await send(inbox) == (200, "duplicate")
    assert seen == ["evt_1"]
    assert run_sql(database, STATES) == [("evt_1", "processed", 1)]


async def test_a_failed_handler_answers_500_and_the_redelivery_is_the_next_attempt(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = inline_inbox(make_inbox)
    placeholder = "$1" if database.startswith("postgresql") else "?"

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(f"INSERT INTO ledger VALUES ({placeholder})", f"attempt {event.attempt}")
        if event.attempt == 1:
            raise ConnectionError("the bank is closed")

    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (note TEXT)")
        assert await send(inbox) == (500, "handler_failed")
        assert run_sql(database, STATES) == [("evt_1", "retrying", 1)]
        assert run_sql(database, "SELECT note FROM ledger") == []
        assert await send(inbox) == (200, "processed")
    assert run_sql(database, STATES) == [("evt_1", "processed", 2)]
    assert run_sql(database, "SELECT note FROM ledger") == [("attempt 2",)]


@pytest.mark.parametrize(("policy", "answers"), [("retry", [500, 500, 200]), ("dead_letter", [200])])
async def test_an_event_is_an_acked_dead_letter_after_its_attempts(
    make_inbox: Callable[..., Inbox], database: str, policy: str, answers: list[int]
) -> None:
    inbox = inline_inbox(make_inbox, on_failure=policy, max_attempts=3)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise ValueError("never")

    async with inbox.lifespan():
        assert [(await send(inbox))[0] for _ in answers] == answers
        assert await send(inbox) == (200, "duplicate")
    assert run_sql(database, STATES) == [("evt_1", "failed", len(answers))]


async def test_a_redelivery_while_the_handler_runs_gets_503(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox, go_on = inline_inbox(make_inbox), asyncio.Event()
    async with inbox.lifespan():
        first = await send_until_handled(inbox, go_on)
        answer = await post(inbox, "stripe", BODY, stripe_headers(BODY))
        assert answer.outcome == (503, "unavailable") and answer.headers["retry-after"] == "5"
        message = answer.json["error"]["message"]
        assert message == "The event is recorded, and its handler is running. Deliver it again later."
        go_on.set()
        assert await first == (200, "processed")
    assert run_sql(database, STATES) == [("evt_1", "processed", 1)]


async def test_an_attempt_whose_lease_was_lost_is_not_acked(make_inbox: Callable[..., Inbox], database: str) -> None:
    """Its work is not committed. The provider has to deliver the event again."""
    inbox = inline_inbox(make_inbox)
    take_lease = "UPDATE webhook_receipts SET lease = lease + 1"

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        if event.attempt == 1:
            await asyncio.to_thread(run_sql, database, take_lease)

    async with inbox.lifespan():
        assert await send(inbox) == (503, "unavailable")
        assert run_sql(database, STATES) == [("evt_1", "processing", 1)]
        run_sql(database, "UPDATE webhook_receipts SET lease_until = '2026-01-01T00:00:00.000000Z'")
        assert await send(inbox) == (200, "processed")


async def test_a_client_that_disconnects_does_not_stop_the_handler(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox, go_on = inline_inbox(make_inbox), asyncio.Event()
    async with inbox.lifespan():
        first = await send_until_handled(inbox, go_on)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        go_on.set()
        await eventually(lambda: run_sql(database, STATES) == [("evt_1", "processed", 1)], "the handler finishes")


async def test_an_event_that_the_provider_stops_retrying_is_a_dead_letter(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = inline_inbox(make_inbox)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise ValueError("not now")

    async with inbox.lifespan():
        assert await send(inbox) == (500, "handler_failed")
        assert await inbox._runtime.store.leases.abandon_inline(ABANDONED) == []
        run_sql(database, "UPDATE webhook_receipts SET next_attempt_at = received_at")
        assert [row.receipt for row in await inbox._runtime.store.leases.abandon_inline(ABANDONED)] == [1]
    assert run_sql(database, STATES) == [("evt_1", "failed", 1)]


async def test_a_single_cloudevent_is_answered_as_one_event_and_a_batch_with_counts(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("cloudevents", secrets=["a token"], mode="inline")

    @inbox.on("cloudevents", "*")
    async def seen(event: Event) -> None: ...

    def event(number: int) -> dict[str, str]:
        return {"specversion": "1.0", "id": str(number), "source": "/shop", "type": "paid"}

    async def send_cloudevents(body: Any, shape: str) -> Any:
        headers = {"Authorization": "Bearer a token", "Content-Type": f"application/{shape}+json"}
        return (await post(inbox, "cloudevents", json.dumps(body).encode(), headers)).json

    async with inbox.lifespan():
        single = await send_cloudevents(event(1), "cloudevents")
        assert (single["status"], single["event_id"]) == ("processed", "/shop|1") and single["receipt"]
        assert (await send_cloudevents(event(1), "cloudevents"))["status"] == "duplicate"
        many = await send_cloudevents([event(1), event(2)], "cloudevents-batch")
        assert many == {"status": "processed", "processed": 1, "duplicate": 1}
        assert await send_cloudevents([event(3)], "cloudevents-batch") == {"status": "processed", "processed": 1}
