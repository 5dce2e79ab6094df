"""Handlers with `once_per`: the first event of each identity is handled, the others are processed without work."""

import asyncio
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Inbox, Retry, SyncEvent
from tests.support.events import Rows, make_claim
from tests.support.registration import make_registration
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim, receipts_are

pytestmark = pytest.mark.anyio


EFFECTS = "SELECT key, status, attempts FROM webhook_effects WHERE kind <> 'once' ORDER BY id"


NOOPS = "SELECT reason, key FROM webhook_noops ORDER BY id"


async def test_a_once_per_handler_handles_the_first_event_of_each_object(
    inbox: Inbox, rows: Rows, insert_note: str, mails: list[Any]
) -> None:
    @inbox.on("stripe", "invoice.*", once_per=("type", "object_id"))
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute(insert_note, f"{event.type} {event.object_id}")

    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    await claim(inbox, "evt_3", object_id="in_2")
    await claim(inbox, "evt_4", object_id="in_1", type="invoice.voided")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 4))
    assert sorted(rows("SELECT note FROM ledger")) == [
        ("invoice.paid in_1",),
        ("invoice.paid in_2",),
        ("invoice.voided in_1",),
    ]
    assert len(rows(NOOPS)) == 1


async def test_a_once_per_handler_runs_again_only_for_a_replay_of_its_own_event(
    inbox: Inbox, rows: Rows, insert_note: str
) -> None:
    @inbox.on("stripe", "invoice.paid", once_per="object_id")
    def paid(event: SyncEvent, tx: Any) -> None:
        tx.execute(insert_note, event.id)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 1))
    await claim(inbox, "evt_2")
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(receipts_are(rows, "processed", 2))
    receipts = [row[0] for row in rows("SELECT id FROM webhook_receipts ORDER BY id")]
    await inbox._runtime.store.operations.replay(receipts, "the test", {})
    inbox._runtime.worker.wake()  # type: ignore[union-attr]
    await eventually(receipts_are(rows, "processed", 2))
    assert rows("SELECT note FROM ledger") == [("evt_1",), ("evt_1",)]


async def test_only_one_of_several_concurrent_events_of_an_identity_commits_its_work(
    inbox: Inbox, rows: Rows, insert_note: str, mails: list[Any]
) -> None:
    together = asyncio.Barrier(4)

    @inbox.on("stripe", "invoice.paid", once_per="object_id", retry=QUICK)
    async def paid(event: Event, tx: Any) -> None:
        if event.attempt == 1:
            await together.wait()
        await tx.execute(insert_note, event.id)
        await event.effect(f"mail:{event.id}", "send_mail", to="jane")

    await claim(inbox, *(f"evt_{n}" for n in range(4)))
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 4))
    assert len(rows("SELECT note FROM ledger")) == 1
    assert len(rows(EFFECTS)) == 1
    assert len(rows(NOOPS)) == 3


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_event_that_loses_the_race_for_an_identity_is_processed_without_work(
    inbox: Inbox, rows: Rows, insert_note: str, swallows: bool
) -> None:
    """Both handlers request the same key. The second waits for the first, and has only one attempt."""
    together = asyncio.Barrier(2)
    inbox.effect(name="note")(lambda effect: None)

    @inbox.on("stripe", "invoice.paid", once_per="object_id", retry=Retry(attempts=1))
    async def paid(event: Event, tx: Any) -> None:
        await together.wait()
        try:
            await event.effect("note:in_1", "note")
            await tx.execute(insert_note, event.id)
        except Exception:
            if not swallows:
                raise

    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "processed", 2))
    assert len(rows("SELECT note FROM ledger")) == 1
    assert rows("SELECT count(*) FROM webhook_effects WHERE kind = 'function'") == [(1,)]
    (noop,) = rows("SELECT reason, key FROM webhook_noops")
    assert noop[0] == "effect" and noop[1].startswith("once:")


async def test_an_event_without_the_identity_is_a_dead_letter(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "invoice.paid", once_per="object_id")
    async def paid(event: Event) -> None: ...

    await inbox._runtime.store.claims.insert([make_claim("evt_1", object_id=None)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 1))
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "once_per='object_id', but the event has no such value" in error


@pytest.mark.parametrize("invalid", [5, "", (), ("object_id", 7)], ids=repr)
def test_once_per_must_name_fields(invalid: Any) -> None:
    with pytest.raises(ConfigurationError, match="once_per"):
        make_registration().on("stripe", "*", once_per=invalid)(lambda event: None)


def test_once_per_and_batch_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="once_per and batch"):
        register: Any = make_registration().on
        register("stripe", "*", once_per="object_id", batch=10)(lambda events: None)
