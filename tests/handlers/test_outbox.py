"""The outbox of a handler call: awaited calls, effects that are written with the status, and `once_per`."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.handlers.order import Advance
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE subscriptions (id TEXT PRIMARY KEY, status TEXT)")
        yield inbox


async def advance(transaction: Any, values: Advance) -> bool:
    return bool(await transaction.run_query(lambda sql: sql["advance"], json.dumps(values.as_json())))


async def test_handler_that_does_not_await_advance_fails(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        event.advance("subscription", event.object_id, version=1)  # type: ignore[unused-coroutine]

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "event.advance(…) was not awaited" in error
