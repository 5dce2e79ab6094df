"""Canonical objects: fetched once per attempt, before the transaction, and retried if the provider is down."""

import asyncio
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry, RetryLater, SyncEvent
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("subscriptions")
async def test_canonical_object_is_fetched_once_and_before_the_transaction(inbox: Inbox, rows: Rows) -> None:
    fetched: list[Any] = []
    objects: list[Any] = []

    @inbox.canonical("stripe")
    async def fetch(event: Event) -> Any:
        fetched.append(event.object_id)
        return {"id": event.object_id, "status": "active"}

    @inbox.on("stripe", "*")
    async def handle(event: Event, tx: Any) -> None:
        objects.append(await event.canonical())
        objects.append(await event.canonical())
        assert await tx.fetchval("SELECT count(*) FROM subscriptions") == 0

    await claim(inbox, "evt_1", object_id="sub_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("processed",)])
    assert (fetched, objects) == (["sub_1"], [{"id": "sub_1", "status": "active"}] * 2)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_event_is_retried_when_the_provider_is_down(inbox: Inbox, rows: Rows, kind: str) -> None:
    failures = iter([ConnectionError("no route"), RetryLater("not yet", after="0.01s"), None])
    objects: list[Any] = []

    def fetch(event: Event) -> Any:
        failure = next(failures)
        if failure is not None:
            raise failure
        return {"id": event.object_id}

    async def asynchronous(event: Event) -> Any:
        return fetch(event)

    inbox.canonical("stripe", asynchronous if kind == "async" else fetch)

    async def handler(event: Event) -> None:
        objects.append(await event.canonical())

    def plain_handler(event: SyncEvent) -> None:
        objects.append(event.canonical())

    function: Any = handler if kind == "async" else plain_handler
    inbox.on("stripe", "*", retry=QUICK)(function)
    await claim(inbox, "evt_1", object_id="sub_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("processed",)])
    assert objects == [{"id": "sub_1"}]
    errors = [row[0] for row in rows("SELECT error FROM webhook_attempts ORDER BY id")]
    assert errors[0] == "RetryLater: the canonical object could not be fetched: ConnectionError: no route"
    assert errors[1:] == ["RetryLater: not yet", None]


async def test_fetch_that_hangs_ends_after_its_timeout(inbox: Inbox, rows: Rows) -> None:
    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    inbox.canonical("stripe", hang, timeout="0.05s")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert rows("SELECT last_error FROM webhook_receipts") == [
        ("RetryLater: the provider did not respond within 0.05 s",)
    ]


@pytest.mark.usefixtures("subscriptions")
async def test_fetch_inside_a_transaction_is_an_error(inbox: Inbox, rows: Rows) -> None:
    inbox.canonical("stripe", lambda event: {"id": 1})

    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def handle(event: Event, tx: Any) -> None:
        await tx.execute("DELETE FROM subscriptions")
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "before the first use of tx" in error


async def test_missing_fetcher_and_a_fetcher_that_raises_fail_make_dead_letters(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.canonical()

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    assert "inbox.canonical('stripe', fetch)" in rows("SELECT last_error FROM webhook_receipts")[0][0]

    def gone(event: Event) -> None:
        raise Fail("the account is closed")

    inbox.canonical("stripe", gone)
    [(receipt,)] = rows("SELECT id FROM webhook_receipts")
    await inbox._runtime.store.operations.replay([receipt], "the test", {})
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(lambda: rows("SELECT last_error FROM webhook_receipts") == [("Fail: the account is closed",)])
