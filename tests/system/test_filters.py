"""Filters and type patterns from the outside: the responses, the records, and the events that a worker runs."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver, receipt
from tests.support.encryption import assert_stored_nowhere, encrypted_inbox
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

BRACKETS = "v2.core.account[requirements].updated"
RECEIPTS = "SELECT event_id, status, last_error FROM webhook_receipts ORDER BY event_id"
LIVE = {"livemode": True, "data.object.amount": {"gte": 100}}


@asynccontextmanager
async def running(
    make_inbox: Callable[..., Inbox], *patterns: str, **options: Any
) -> AsyncIterator[tuple[Inbox, list[tuple[str, str]]]]:
    """Run an inbox with a worker. Returns it and the pattern and event id of every handled event."""
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], **options)
    handled: list[tuple[str, str]] = []
    for pattern in patterns:

        @inbox.on("stripe", pattern)
        async def handle(event: Event, *, pattern: str = pattern) -> None:
            handled.append((pattern, event.id))

    async with inbox.lifespan():
        yield inbox, handled


def payment(event_id: str, **changes: Any) -> bytes:
    values = {"id": event_id, "type": "charge.paid", "livemode": True, "data": {"object": {"amount": 500}}}
    return json.dumps(values | changes).encode()


@pytest.mark.parametrize("mode", ["queued", "inline"])
async def test_event_that_a_filter_leaves_out_is_ignored_with_its_reason_and_can_be_replayed(
    make_inbox: Callable[..., Inbox], rows: Rows, mode: str
) -> None:
    async with running(make_inbox, "*", where=LIVE, mode=mode) as (inbox, handled):
        outcome = (202, "accepted") if mode == "queued" else (200, "processed")
        assert (await deliver(inbox, "stripe", payment("evt_1"))).outcome == outcome
        assert (await deliver(inbox, "stripe", payment("evt_2", livemode=False))).outcome == (200, "ignored")
        assert (await deliver(inbox, "stripe", payment("evt_3", data={"object": []}))).outcome == (200, "ignored")
        assert (await deliver(inbox, "stripe", payment("evt_2", livemode=False))).outcome == (200, "duplicate")
        await eventually(lambda: handled == [("*", "evt_1")], "the worker handles the event that matches")
        assert rows(RECEIPTS)[1:] == [
            ("evt_2", "ignored", "livemode is false, not true"),
            ("evt_3", "ignored", "data.object.amount is absent, not 100 or more"),
        ]
        store = inbox._runtime.store
        (number,) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_2'")[0]
        assert (await replay(store, Selection(receipts=(number,)))).count == 1
        await eventually(lambda: handled[1:] == [("*", "evt_2")], "the replay runs the handler")
        await eventually(lambda: rows(RECEIPTS)[1] == ("evt_2", "processed", None), "the replayed event is settled")


async def test_type_that_is_not_listed_is_ignored_with_its_reason_and_can_be_replayed(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async with running(make_inbox, "*", types=["charge.paid"]) as (inbox, handled):
        assert (await deliver(inbox, "stripe", payment("evt_1", type="charge.failed"))).outcome == (200, "ignored")
        assert rows(RECEIPTS) == [
            ("evt_1", "ignored", "the type charge.failed is not in sources.stripe.types"),
        ]
        assert (await replay(inbox._runtime.store, Selection(receipts=(1,)))).count == 1
        await eventually(lambda: handled == [("*", "evt_1")], "the replay runs the handler")


async def test_filter_is_read_from_the_configuration_file(database: str, tmp_path: Path, rows: Rows) -> None:
    file = tmp_path / "oncehook.toml"
    file.write_text(
        f'database = "{database}"\n[sources.stripe]\nsecrets = ["whsec_test"]\n'
        '[sources.stripe.where]\n"data.object.currency" = ["eur", "usd"]\n'
        'any = [{ livemode = true }, { "@object_id" = { prefix = "in_" } }]\n'
    )
    inbox = Inbox(config=file, worker=False)
    async with inbox.lifespan():
        for number, object_ in enumerate([{"currency": "eur", "id": "in_1"}, {"currency": "eur", "id": "ch_1"}, {}]):
            await deliver(inbox, "stripe", payment(f"evt_{number}", livemode=False, data={"object": object_}))
    assert rows(RECEIPTS) == [
        ("evt_0", "received", None),
        (
            "evt_1",
            "ignored",
            'no alternative holds: livemode is false, not true; @object_id is "ch_1", not text that begins with "in_"',
        ),
        ("evt_2", "ignored", 'data.object.currency is absent, not in ["eur", "usd"]'),
    ]


async def test_filter_of_a_consumer_leaves_out_only_its_own_receipt_which_can_be_replayed(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.consumer("ledger", where=LIVE, types=["charge.*", BRACKETS])
    handled: list[tuple[str, str]] = []

    async def handle(event: Event) -> None:
        handled.append((event.consumer, event.id))

    inbox.on("stripe", "*")(handle)
    inbox.on("stripe", "*", consumer="ledger")(handle)
    states = "SELECT id, event_id, status, last_error FROM webhook_receipts WHERE consumer = 'ledger' ORDER BY id"
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", payment("evt_1", livemode=False))).outcome == (202, "accepted")
        assert (await deliver(inbox, "stripe", payment("evt_2", type="payout.paid"))).outcome == (202, "accepted")
        assert (await deliver(inbox, "stripe", payment("evt_3", type=BRACKETS))).outcome == (202, "accepted")
        expected = {("main", "evt_1"), ("main", "evt_2"), ("main", "evt_3"), ("ledger", "evt_3")}
        await eventually(lambda: set(handled) == expected, "each consumer handles what its filter accepts")
        ignored = [row for row in rows(states) if row[2] == "ignored"]
        assert [row[1:] for row in ignored] == [
            ("evt_1", "ignored", "livemode is false, not true"),
            ("evt_2", "ignored", "the type payout.paid is not in consumers.ledger.types"),
        ]
        assert (await replay(inbox._runtime.store, Selection(receipts=(ignored[0][0],)))).count == 1
        await eventually(lambda: ("ledger", "evt_1") in handled, "the replay runs the consumer's handler")
    assert len(handled) == 5, "the replay must not run the handler of another consumer"


async def test_reason_of_an_encrypted_source_is_encrypted_and_shown_to_the_operator(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = encrypted_inbox(make_inbox, where={"data.object.note": {"exists": False}})
    async with inbox.lifespan():
        response = await deliver(inbox, "stripe", payment("evt_1", data={"object": {"note": "a private note"}}))
        assert response.outcome == (200, "ignored")
        assert_stored_nowhere(database, "a private note")
        shown = await receipt(inbox, response)
    assert shown.last_error == 'data.object.note is "a private note", not absent'


async def test_type_with_brackets_is_accepted_and_handled_where_it_is_listed(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    patterns = ("v2.core.*", BRACKETS, "v2.core.account?requirements?.updated")
    async with running(make_inbox, *patterns, types=[BRACKETS, "v2.core.event_destination.ping"]) as (inbox, handled):
        assert (await deliver(inbox, "stripe", stripe_body("evt_1", BRACKETS))).outcome == (202, "accepted")
        other = await deliver(inbox, "stripe", stripe_body("evt_2", "v2.core.accountr.updated"))
        assert other.outcome == (200, "ignored"), "brackets must not be a set of characters"
        await deliver(inbox, "stripe", stripe_body("evt_3", "v2.core.event_destination.ping"))
        await eventually(lambda: len(handled) == 2, "both listed events are handled")
        assert sorted(handled) == [("v2.core.*", "evt_3"), (BRACKETS, "evt_1")]
        assert rows(RECEIPTS)[1][1] == "ignored"
