"""The roster of one process: its own handlers, those of the others, and events that no process handles."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Retry
from oncehook.handlers.registry import Handler, Handlers
from oncehook.handlers.roster import RESUME_SECONDS, Roster
from oncehook.model.patterns import Handled
from oncehook.store.store import Store
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.providers import make_source
from tests.support.work import claim

pytestmark = pytest.mark.anyio

UNHANDLED = "SELECT type, status FROM webhook_receipts WHERE unhandled_at IS NOT NULL ORDER BY type"


def make_handlers(*patterns: str) -> Handlers:
    async def handle(event: Any) -> None: ...

    handlers = Handlers()
    for pattern in patterns:
        handlers.add(Handler(source="stripe", pattern=pattern, function=handle, retry=Retry(), timeout=1.0))
    return handlers


def make_roster(store: Store, *patterns: str, announce: Callable[[], None] = lambda: None) -> Roster:
    return Roster(store, make_handlers(*patterns), {}, announce=announce)


async def test_process_handles_its_own_types_and_knows_those_of_the_others(store: Store) -> None:
    first, second = make_roster(store, "invoice.*"), make_roster(store, "charge.*")
    await first.refresh()
    await second.refresh()
    await first.refresh()
    assert first.handled().patterns == (("stripe", "invoice.*"),) and first.is_known
    assert first.is_handled("stripe", "charge.paid") and first.is_handled_elsewhere("stripe", "charge.paid")
    assert first.is_handled("stripe", "invoice.paid") and not first.is_handled_elsewhere("stripe", "invoice.paid")
    assert not first.is_handled("stripe", "customer.created")


async def test_leases_are_shared_only_if_another_process_handles_other_types(store: Store) -> None:
    first, same, other = (
        make_roster(store, "invoice.*"),
        make_roster(store, "invoice.*"),
        make_roster(store, "charge.*"),
    )
    for roster in (first, same, first):
        await roster.refresh()
    assert first.handled().is_shared is False
    await other.refresh()
    await first.refresh()
    assert first.handled().is_shared is True


async def test_events_that_no_process_handles_are_set_aside_without_an_attempt(store: Store, rows: Rows) -> None:
    roster = make_roster(store, "invoice.*")
    await claim(store, "evt_1", type="invoice.paid")
    await claim(store, "evt_2", type="charge.paid")
    await roster.refresh()
    assert rows(UNHANDLED) == [("charge.paid", "received")]
    leased = await store.leases.take(10, 30, "test", handled=Handled((("stripe", "*"),)))
    assert [event.type for event in leased] == ["invoice.paid"]


async def test_events_that_were_set_aside_are_resumed_when_a_handler_appears(store: Store, rows: Rows) -> None:
    announced: list[int] = []
    await claim(store, "evt_1", type="charge.paid")
    await make_roster(store, "invoice.*").refresh()
    assert rows(UNHANDLED) != []
    await make_roster(store, "charge.*", announce=lambda: announced.append(1)).refresh()
    assert (rows(UNHANDLED), announced) == ([], [1])


async def test_handlers_stay_live_after_a_stop_so_that_a_restart_loses_no_event(store: Store) -> None:
    stopped, other = make_roster(store, "charge.*"), make_roster(store, "invoice.*")
    await stopped.refresh()
    stopped.start()
    await stopped.stop()
    await other.refresh()
    assert other.is_handled("stripe", "charge.paid")


@pytest.mark.parametrize(("unhandled", "status"), [("ignore", "ignored"), ("wait", "received")])
async def test_event_that_waited_for_minutes_is_ignored_if_its_source_says_so(
    store: Store, rows: Rows, unhandled: str, status: str
) -> None:
    clock = ManualClock()
    sources = {"stripe": make_source(unhandled=unhandled)}
    roster = Roster(store, make_handlers(), sources, announce=lambda: None, clock=clock)
    await claim(store, "evt_1", type="charge.paid")
    await roster.refresh()
    assert rows(UNHANDLED) == [("charge.paid", "received")], "a handler may still appear"
    rows("UPDATE webhook_receipts SET unhandled_at = '2026-01-01T00:00:00.000000Z'")
    clock.advance(RESUME_SECONDS)
    await roster.refresh()
    reason = roster.ignored_because("stripe", "charge.paid") if status == "ignored" else None
    assert rows("SELECT status, last_error, attempts FROM webhook_receipts") == [(status, reason, 0)]


async def test_type_without_a_handler_is_logged_once(store: Store, emitted: list[tuple[str, dict[str, Any]]]) -> None:
    roster = make_roster(store, "invoice.*")
    for event_id, type_ in (("evt_1", "charge.paid"), ("evt_2", "charge.paid"), ("evt_3", "charge.voided")):
        await claim(store, event_id, type=type_)
        await roster.refresh()
    assert [(fields["type"], fields["count"]) for line, fields in emitted if line == "unhandled"] == [
        ("charge.paid", 1),
        ("charge.voided", 1),
    ]


async def test_ignored_receipt_says_why(store: Store) -> None:
    roster = make_roster(store, "invoice.*")
    assert roster.ignored_because("stripe", "charge.paid") == (
        'no process has a handler for charge.paid, and sources.stripe.unhandled is "ignore"'
    )
    roster.is_left_to_others = lambda source, type_: source == "stripe"
    assert roster.ignored_because("stripe", "charge.paid") == (
        "only other consumers handle charge.paid of stripe: no process has a handler of main for it"
    )
