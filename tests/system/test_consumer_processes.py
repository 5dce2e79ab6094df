"""Consumers in several processes: one that is down, a rolling deploy, removed code, and `main` without handlers.

Two inboxes on one database stand for two processes.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.handlers import roster
from oncehook.testing import advance, deliver
from tests.support.consumers import Handled, all_are, outcomes, outcomes_are, record, send
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually, stays_true
from tests.support.work import unhandled_events

pytestmark = pytest.mark.anyio

LONG_AGO = "'2026-01-01T00:00:00.000000Z'"


@pytest.fixture(autouse=True)
def quick_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh the roster every few milliseconds instead of every second."""
    monkeypatch.setattr(roster, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(roster, "RESUME_SECONDS", 0.05)
    monkeypatch.setattr(roster, "SEEN_SECONDS", 0.1)


@pytest.fixture
def handled() -> Handled:
    return []


Start = Callable[..., Any]


@pytest.fixture
def started(make_inbox: Callable[..., Inbox], handled: Handled) -> Start:
    """Starts an inbox with a worker, and handlers of consumers for some patterns."""

    @asynccontextmanager
    async def start(options: dict[str, Any] | None = None, /, **patterns: str) -> AsyncIterator[Inbox]:
        inbox = make_inbox(worker=True)
        inbox.source("stripe", secrets=["whsec_test"], **(options or {}))
        for consumer, pattern in patterns.items():
            record(inbox, handled, consumer, pattern=pattern)
        async with inbox.lifespan():
            yield inbox

    return start


def let_minutes_pass(rows: Rows) -> None:
    """Move the roster back in time: processes that have stopped are gone, and unhandled events have waited."""
    rows(f"UPDATE webhook_receipts SET unhandled_at = {LONG_AGO} WHERE unhandled_at IS NOT NULL")
    rows(f"UPDATE webhook_workers SET registered_at = {LONG_AGO}, seen_at = {LONG_AGO}")


async def test_consumer_whose_process_is_down_gets_its_events_later(
    started: Start, rows: Rows, handled: Handled
) -> None:
    async with started(main="*") as shop:
        async with started(ledger="*"):
            await eventually(lambda: shop._runtime.consumers.are_subscribed("stripe"), "shop knows the ledger")
        await send(shop, "evt_1", "evt_2")
        await eventually(outcomes_are(rows, "evt_2", main="processed", ledger="received"))
        let_minutes_pass(rows)
        await stays_true(lambda: outcomes(rows)["ledger"] == "received", "the ledger's events wait")
        async with started(ledger="*"):
            await eventually(all_are(rows, "ledger", "processed", 2), "the ledger is back")
    assert sorted(handled) == [(name, event_id) for name in ("ledger", "main") for event_id in ("evt_1", "evt_2")]


async def test_rolling_deploy_that_adds_a_pattern_loses_no_event_of_a_consumer(
    started: Start, rows: Rows, handled: Handled
) -> None:
    async with started(main="*", ledger="invoice.*") as old:
        async with started(main="*", ledger="charge.*"):
            known = lambda: len(json.loads(old._runtime.consumers.stored[0].patterns)) == 2  # noqa: E731
            await eventually(known, "the old process knows the new pattern")
            await send(old, "evt_1", type_="invoice.paid")
            await send(old, "evt_2", type_="charge.paid")
            for event_id in ("evt_1", "evt_2"):
                await eventually(outcomes_are(rows, event_id, main="processed", ledger="processed"))
        await send(old, "evt_3", type_="charge.paid")
        let_minutes_pass(rows)
        await eventually(lambda: unhandled_events(rows) == ["evt_3"], "no process handles charges for the ledger")
        async with started(main="*", ledger="charge.*"):
            await eventually(outcomes_are(rows, "evt_3", main="processed", ledger="processed"), "it waited")
    assert rows("SELECT DISTINCT attempts FROM webhook_receipts") == [(1,)]


async def test_receipts_of_a_consumer_that_is_removed_from_the_code_wait(
    started: Start, rows: Rows, handled: Handled
) -> None:
    async with started(main="*", ledger="*") as shop:
        await shop._runtime.store.pauses.pause("", "a test", consumer="ledger")
        await send(shop, "evt_1")
        await eventually(outcomes_are(rows, main="processed", ledger="received"))
        await shop._runtime.store.pauses.resume("", "a test", consumer="ledger")
        await shop._runtime.stop_work()
    rows("UPDATE webhook_receipts SET status = 'received', attempts = 0 WHERE consumer = 'ledger'")
    handled.clear()
    async with started(main="*") as shop:
        await send(shop, "evt_2")
        await eventually(outcomes_are(rows, "evt_2", main="processed", ledger="received"))
        await advance(shop, "2000d")
        await shop.prune()
        assert outcomes(rows) == {"main": "processed", "ledger": "received"}, "an unfinished event is never pruned"
    async with started(main="*", ledger="*"):
        await eventually(all_are(rows, "ledger", "processed", 2), "the code is back")
    assert sorted(handled) == [("ledger", "evt_1"), ("ledger", "evt_2"), ("main", "evt_2")]


# -- main -----------------------------------------------------------------------------------------------------------


async def test_main_without_a_handler_is_ignored_and_the_others_are_processed(started: Start, rows: Rows) -> None:
    async with started(ledger="*") as shop:
        await send(shop, "evt_1")
        await eventually(lambda: unhandled_events(rows) == ["evt_1"], "main waits for a handler at first")
        let_minutes_pass(rows)
        await eventually(outcomes_are(rows, main="ignored", ledger="processed"))
    reason = "only other consumers handle invoice.paid of stripe: no process has a handler of main for it"
    assert rows("SELECT last_error FROM webhook_receipts WHERE consumer = 'main'") == [(reason,)]


async def test_events_of_main_wait_while_only_the_process_with_its_handler_is_down(
    started: Start, rows: Rows, handled: Handled
) -> None:
    """A process with another consumer must not end the events of `main`, which would be lost without a trace."""
    async with started(ledger="*") as ledger:
        async with started(main="invoice.*"):
            known = lambda: not ledger._runtime.consumers.is_left_to_others("stripe", "invoice.paid")  # noqa: E731
            await eventually(known, "the ledger's process knows the handler of main")
        await send(ledger, "evt_1")
        let_minutes_pass(rows)
        await eventually(lambda: unhandled_events(rows) == ["evt_1"], "no live process has a handler of main")
        let_minutes_pass(rows)
        await stays_true(lambda: outcomes(rows)["main"] == "received", "main waits", seconds=0.5)
        async with started(main="invoice.*"):
            await eventually(outcomes_are(rows, main="processed", ledger="processed"), "main is back")
    assert sorted(handled) == [("ledger", "evt_1"), ("main", "evt_1")]


async def test_handlers_of_main_are_known_even_if_they_were_there_before_the_first_other_consumer(
    started: Start, rows: Rows
) -> None:
    async with started(main="invoice.*") as shop, started(ledger="*") as ledger:
        of_main = ledger._runtime.store.consumers.of_main
        await eventually(lambda: _has_rows(of_main), "the process of main registers its patterns")
        await eventually(lambda: not shop._runtime.consumers.is_left_to_others("stripe", "invoice.paid"))
        assert shop._runtime.consumers.is_left_to_others("stripe", "charge.paid")


async def _has_rows(query: Callable[[], Any]) -> bool:
    return bool(await query())


# -- inline sources -------------------------------------------------------------------------------------------------


async def test_failing_consumer_of_an_inline_source_does_not_change_the_response(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    main_fails = False

    @inbox.on("stripe", "*")
    async def main(event: Event) -> None:
        if main_fails:
            raise RuntimeError("no")

    @inbox.on("stripe", "*", consumer="ledger")
    async def book(event: Event) -> None: ...

    @inbox.on("stripe", "*", consumer="search", retry=Retry(attempts=1))
    async def fail(event: Event) -> None:
        raise RuntimeError("the search index is down")

    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (200, "processed")
        await eventually(outcomes_are(rows, main="processed", ledger="processed", search="failed"))
        main_fails = True
        assert (await deliver(inbox, "stripe", stripe_body("evt_2"))).status == 500
        await eventually(outcomes_are(rows, "evt_2", main="retrying", ledger="processed", search="failed"))
        main_fails = False
        assert (await deliver(inbox, "stripe", stripe_body("evt_2"))).outcome == (200, "processed")
    attempts = rows("SELECT consumer, attempts FROM webhook_receipts WHERE event_id = 'evt_2' ORDER BY consumer")
    assert attempts == [("ledger", 1), ("main", 2), ("search", 1)], "a redelivery is an attempt of main only"


async def test_inline_source_without_a_handler_of_main_accepts_events_for_other_consumers(
    started: Start, rows: Rows
) -> None:
    async with started({"mode": "inline"}, ledger="*") as shop:
        await eventually(lambda: shop._runtime.roster.is_known)
        assert (await deliver(shop, "stripe", stripe_body("evt_1"))).outcome == (200, "ignored")
        await eventually(outcomes_are(rows, main="ignored", ledger="processed"))


# -- settings -------------------------------------------------------------------------------------------------------


async def test_settings_of_the_process_that_started_last_apply_during_a_rolling_deploy(
    make_inbox: Callable[..., Inbox], rows: Rows, handled: Handled
) -> None:
    def make(types: list[str]) -> Inbox:
        inbox = make_inbox(worker=True)
        inbox.source("stripe", secrets=["whsec_test"])
        inbox.consumer("ledger", types=types)
        record(inbox, handled, "main", "ledger")
        return inbox

    old, new = make(["invoice.*"]), make(["charge.*"])
    stored = "SELECT settings FROM webhook_consumers WHERE name = 'ledger'"
    async with old.lifespan(), new.lifespan():
        assert [json.loads(text) for (text,) in rows(stored)] == [{"types": ["charge.*"]}]
        await stays_true(lambda: "charge" in rows(stored)[0][0], "the old process keeps the new settings", seconds=0.5)
