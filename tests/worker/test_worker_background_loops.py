"""The background loops of a worker and relay survive unexpected errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oncehook import Effect, Event, Inbox
from oncehook.worker.rescue import keep_rescuing
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import QUICK, FailsAtFirst, claim, effects_are

pytestmark = pytest.mark.anyio


STATES = "SELECT event_id, status, attempts, last_error FROM webhook_receipts ORDER BY event_id"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with two slots."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


async def test_the_loops_of_worker_and_relay_survive_an_unexpected_error(
    inbox: Inbox, rows: Rows, emitted: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, effects = inbox._runtime.store, inbox._runtime.store.effects
    methods = (
        (store.leases, "take"),
        (store.leases, "expired"),
        (store.wakeups, "listen"),
        (effects, "lease"),
        (effects, "expired"),
    )
    for owner, method in methods:
        monkeypatch.setattr(owner, method, FailsAtFirst(getattr(owner, method)))

    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.on("stripe", "*", retry=QUICK)
    async def request(event: Event) -> None:
        await event.effect(event.id, send)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "done", 1))
    failed_loops = [fields["loop"] for line, fields in emitted if line == "background_failed"]
    assert {"worker", "relay", "relay rescue", "listen"} <= set(failed_loops)
    rescuing = asyncio.create_task(
        keep_rescuing(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources, 0.05)
    )
    expired = inbox._runtime.store.leases.expired
    await eventually(lambda: expired.times < 0)  # type: ignore[attr-defined]
    assert not rescuing.done()
    rescuing.cancel()
    assert {"loop": "rescue", "error": "LookupError"}.items() <= next(
        fields for line, fields in emitted if fields.get("loop") == "rescue"
    ).items()
