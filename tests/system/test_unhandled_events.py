"""Events without a handler: no process finishes them while another has a handler, and a new handler resumes them.

Two inboxes on one database stand for two processes: the roster knows them by name.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.handlers import roster
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver
from oncehook.worker.rescue import rescue
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.waiting import eventually
from tests.support.work import unhandled_events

pytestmark = pytest.mark.anyio


STATES = "SELECT status, count(*) FROM webhook_receipts GROUP BY status ORDER BY status"


LONG_AGO = "'2026-01-01T00:00:00.000000Z'"


SHOP = ("invoice.*",)


@pytest.fixture
def quick_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh the roster every few milliseconds instead of every second."""
    monkeypatch.setattr(roster, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(roster, "RESUME_SECONDS", 0.05)
    monkeypatch.setattr(roster, "SEEN_SECONDS", 0.2)


@pytest.fixture
def handled() -> list[tuple[str, str]]:
    """The name of the process and the event id of every handled event."""
    return []


Start = Callable[..., Any]


@pytest.fixture
def started(make_inbox: Callable[..., Inbox], handled: list[tuple[str, str]], quick_roster: None) -> Start:
    """Starts an inbox with a worker, and handlers for some patterns of the source."""

    @asynccontextmanager
    async def start(name: str, *patterns: str, source: str = "stripe", **options: Any) -> AsyncIterator[Inbox]:
        inbox = make_inbox()
        inbox.source(source, **{"secrets": ["whsec_test"], **options})

        async def record(event: Event) -> None:
            handled.append((name, event.id))

        for pattern in patterns:
            inbox.on(source, pattern)(record)
        async with inbox.lifespan():
            inbox._runtime.start_worker()
            yield inbox

    return start


async def deliver_events(inbox: Inbox, *events: tuple[str, str]) -> None:
    """Deliver events by their ids and types."""
    for event_id, type_ in events:
        assert (await deliver(inbox, "stripe", stripe_body(event_id, type_))).status in (200, 202)


def forget_dead_processes(rows: Rows) -> None:
    """Move the roster back in time, as if a minute had passed since the dead processes were last seen."""
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO}")


async def test_a_process_without_handlers_leaves_events_to_the_process_that_has_them(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("shop", *SHOP) as shop, started("bystander") as bystander:
        await deliver_events(shop, *((f"evt_{number}", "invoice.paid") for number in range(20)))
        await deliver_events(bystander, *((f"evt_{number}", "invoice.paid") for number in range(20, 40)))
        await eventually(lambda: rows(STATES) == [("processed", 40)], "all events are processed")
    assert sorted(handled) == sorted(("shop", f"evt_{number}") for number in range(40))
    assert rows("SELECT DISTINCT outcome, attempts FROM webhook_receipts") == [("processed", 1)]


async def test_an_event_without_a_handler_waits_and_is_processed_when_a_handler_appears(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("bystander") as bystander:
        await deliver_events(bystander, ("evt_1", "invoice.paid"))
        await eventually(lambda: unhandled_events(rows) == ["evt_1"], "the event is set aside")
        assert rows("SELECT status, attempts FROM webhook_receipts") == [("received", 0)]
        async with started("shop", *SHOP):
            await eventually(lambda: rows(STATES) == [("processed", 1)], "the new handler gets the event")
    assert handled == [("shop", "evt_1")] and unhandled_events(rows) == []


async def test_an_event_whose_only_handler_died_is_set_aside_after_its_minute_on_the_roster(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("bystander") as bystander:
        async with started("shop", *SHOP):
            await deliver_events(bystander, ("evt_1", "invoice.paid"))
            await eventually(lambda: rows(STATES) == [("processed", 1)])
            elsewhere = bystander._runtime.roster.is_handled_elsewhere
            await eventually(lambda: elsewhere("stripe", "invoice.paid"), "the shop is on the roster before it ends")
        await deliver_events(bystander, ("evt_2", "invoice.paid"), ("evt_3", "customer.created"))
        await eventually(lambda: unhandled_events(rows) == ["evt_3"], "only a type that was never handled is set aside")
        forget_dead_processes(rows)
        await eventually(lambda: unhandled_events(rows) == ["evt_2", "evt_3"], "a dead process counts for a minute")
        async with started("shop", *SHOP):
            await eventually(lambda: len(handled) == 2)
    assert handled == [("shop", "evt_1"), ("shop", "evt_2")]


async def test_an_expired_lease_is_left_to_a_process_that_knows_the_retry_policy(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    """A process without the handler does not know its number of attempts, so it makes no dead letter."""
    async with started("bystander") as bystander:
        async with started("shop", *SHOP):
            await deliver_events(bystander, ("evt_1", "invoice.paid"))
            await eventually(lambda: rows(STATES) == [("processed", 1)])
        forget_dead_processes(rows)
        await eventually(lambda: not bystander._runtime.roster.is_handled_elsewhere("stripe", "invoice.paid"))
        rows(
            f"UPDATE webhook_receipts SET status = 'processing', attempts = 50, lease = 9, lease_until = {LONG_AGO}, "
            "processed_at = NULL"
        )
        runtime = bystander._runtime
        await rescue(runtime.store, runtime.handlers, runtime.sources, runtime.roster.is_handled_elsewhere)
        assert rows("SELECT status FROM webhook_receipts") == [("retrying",)]


async def test_an_unhandled_event_behind_many_that_are_due_at_the_same_time_is_set_aside(
    started: Start, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other events fill whole windows of the scan and are due at one instant. The scan continues behind them."""
    monkeypatch.setattr(roster, "WINDOW", 20)
    async with started("shop", *SHOP) as shop:
        await shop.pause("stripe")
        claims = [make_claim(f"evt_{number:03d}", type="invoice.paid") for number in range(100)]
        await shop._runtime.store.claims.insert([*claims, make_claim("zzz", type="customer.created")])
        rows(f"UPDATE webhook_receipts SET received_at = {LONG_AGO}, unhandled_at = NULL")
        await eventually(lambda: unhandled_events(rows) == ["zzz"], "the scan reaches the last event")


async def test_a_source_that_ignores_unhandled_events_ignores_them_after_a_while_and_a_replay_is_processed(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("charges", "charge.*", unhandled="ignore") as charges:
        await deliver_events(charges, ("evt_1", "invoice.paid"))
        await eventually(lambda: unhandled_events(rows) == ["evt_1"])
        rows(f"UPDATE webhook_receipts SET unhandled_at = {LONG_AGO}")
        rows(f"UPDATE webhook_workers SET registered_at = {LONG_AGO}")
        await eventually(lambda: rows(STATES) == [("ignored", 1)], "the event is ignored")
        reason = 'no process has a handler for invoice.paid, and sources.stripe.unhandled is "ignore"'
        assert rows("SELECT last_error, attempts, unhandled_at FROM webhook_receipts") == [(reason, 0, None)]
        async with started("shop", *SHOP, unhandled="ignore") as shop:
            assert (await replay(shop._runtime.store, Selection(receipts=(1,)))).count == 1
            await eventually(lambda: handled == [("shop", "evt_1")], "the replay reaches the handler")


async def test_no_event_is_ignored_within_a_minute_of_a_start(started: Start, rows: Rows) -> None:
    async with started("charges", "charge.*", unhandled="ignore") as charges:
        await deliver_events(charges, ("evt_1", "invoice.paid"))
        await eventually(lambda: unhandled_events(rows) == ["evt_1"])
        rows(f"UPDATE webhook_receipts SET unhandled_at = {LONG_AGO}")
        for _ in range(3):
            await charges._runtime.roster.refresh()
        assert rows(STATES) == [("received", 1)], "a process that has just started may be part of a deploy"


def test_an_unknown_value_of_unhandled_is_a_configuration_error(tmp_path: Path) -> None:
    inbox: Any = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    with pytest.raises(ConfigurationError, match="unhandled is 'drop': expected one of wait, ignore"):
        inbox.source("stripe", secrets=["x"], unhandled="drop")


async def test_a_projection_leaves_events_with_a_handler_in_another_process_to_that_process(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    options = {"source": "postmark", "secrets": [], "verify": "none", "email": True}
    async with started("bystander", **options) as bystander, started("mail", "Bounce", **options):
        await eventually(lambda: bystander._runtime.roster.is_handled_elsewhere("postmark", "Bounce"))
        for number in range(20):
            facts = {"RecordType": "Bounce" if number % 2 else "Delivery", "MessageID": f"m{number}", "ID": number + 1}
            body = json.dumps({**facts, "Recipient": "a@b.co", "Email": "a@b.co"}).encode()
            assert (await deliver(bystander, "postmark", body)).status == 202
        await eventually(lambda: rows(STATES) == [("processed", 20)])
    assert len(handled) == 10 and {name for name, _ in handled} == {"mail"}


async def test_an_inline_event_without_a_handler_here_is_rejected_so_that_its_sender_delivers_again(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("bystander", mode="inline") as bystander, started("shop", *SHOP, mode="inline") as shop:
        rejected = await deliver(bystander, "stripe", stripe_body("evt_1"))
        assert (rejected.status, rejected.headers["retry-after"]) == (503, "60")
        assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)], "a rejected delivery must leave no receipt"
        assert (await deliver(shop, "stripe", stripe_body("evt_1"))).outcome == (200, "processed")
    assert handled == [("shop", "evt_1")]


async def test_an_unhandled_inline_event_is_ignored_if_its_source_says_so(started: Start, rows: Rows) -> None:
    options = {"mode": "inline", "unhandled": "ignore"}
    async with started("bystander", **options) as bystander, started("shop", *SHOP, **options):
        await eventually(lambda: bystander._runtime.roster.is_handled_elsewhere("stripe", "invoice.paid"))
        ignored = await deliver(bystander, "stripe", stripe_body("evt_1", "customer.created"))
        assert ignored.outcome == (200, "ignored")
        assert (await deliver(bystander, "stripe", stripe_body("evt_2", "invoice.paid"))).status == 503
    assert rows("SELECT event_id, status FROM webhook_receipts") == [("evt_1", "ignored")]


async def test_an_unhandled_event_does_not_block_its_serial_key(
    started: Start, rows: Rows, handled: list[tuple[str, str]]
) -> None:
    async with started("shop", *SHOP, serial_by="object_id") as shop:
        await deliver_events(shop, ("evt_1", "customer.created"), ("evt_2", "invoice.paid"))
        await eventually(lambda: handled == [("shop", "evt_2")], "the handled event of the same object is processed")
        assert unhandled_events(rows) == ["evt_1"]


async def test_any_process_forwards_the_events_of_a_source_with_a_forward(started: Start, rows: Rows) -> None:
    async with started("any", forward="http://127.0.0.1:9/", max_attempts=1) as inbox:
        await deliver_events(inbox, ("evt_1", "invoice.paid"))
        await eventually(lambda: rows(STATES) == [("failed", 1)], "the forward fails, because no server listens there")
        assert unhandled_events(rows) == []
