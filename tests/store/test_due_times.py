"""The clock is ahead for a while: nothing that is scheduled then waits until the clock has caught up."""

import asyncio
from functools import partial

import pytest

from oncehook.model.effect import EffectState, SettledEffect
from oncehook.model.event import MAIN
from oncehook.model.lease import Leased
from oncehook.model.patterns import Handled
from oncehook.model.states import State
from oncehook.store import due_times
from oncehook.store.rows import EffectTarget
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.store import Store
from tests.support.clocks import set_clock_back
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import claim_and_lease, event_ids, open_store, processed, settle

pytestmark = pytest.mark.anyio

HOUR = 3600
TARGETS = [EffectTarget("call", "send", 30)]
fail = partial(settle, status=State.RETRYING, after=60.0)


async def claim_one_and_lease(store: Store, serial_key: str | None = None) -> list[Leased]:
    await store.claims.insert([make_claim("evt_0", serial_key=serial_key)])
    return await store.leases.take(1, 60, "first")


async def due(store: Store, *, rescued: bool = False) -> list[str]:
    return event_ids(await store.leases.take(10, 60, "second", rescued=rescued))


@pytest.mark.parametrize("serial_key", [None, "a key"])
async def test_retry_of_an_attempt_that_began_before_the_clock_was_ahead_is_due(
    store: Store, database: str, serial_key: str | None
) -> None:
    leased = await claim_one_and_lease(store, serial_key)
    set_clock_back(database, -HOUR)
    await fail(store, leased)
    await store.claims.insert([make_claim("newer")])
    set_clock_back(database, HOUR)
    assert sorted(await due(store)) == ["evt_0", "newer"]


@pytest.mark.parametrize("serial_key", [None, "a key"])
async def test_retry_is_due_after_a_correction_if_nothing_arrived_while_the_clock_was_ahead(
    store: Store, database: str, serial_key: str | None
) -> None:
    leased = await claim_one_and_lease(store, serial_key)
    set_clock_back(database, -HOUR)
    await fail(store, leased)
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert await due(store) == ["evt_0"]


async def test_receipt_of_a_worker_that_died_before_the_clock_was_ahead_is_due_after_a_correction(
    store: Store, database: str
) -> None:
    leased = await claim_one_and_lease(store)
    set_clock_back(database, -HOUR)
    assert [row.receipt for row in await store.leases.expired(10, 0)] == [leased[0].receipt]
    await fail(store, leased, crashed=True)
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert await due(store, rescued=True) == ["evt_0"]


async def test_retries_of_a_right_clock_keep_their_backoff(store: Store, database: str) -> None:
    leased = await claim_and_lease(store, 2)
    await fail(store, leased[:1])
    set_clock_back(database, -HOUR)
    set_clock_back(database, HOUR)
    await fail(store, leased[1:], after=24 * 3600.0)
    assert await store.due_times.correct() == 0
    assert await due(store) == []


async def test_retry_of_an_attempt_that_began_while_the_clock_was_ahead_keeps_its_backoff(
    store: Store, database: str
) -> None:
    set_clock_back(database, -HOUR)
    leased = await claim_and_lease(store)
    set_clock_back(database, HOUR)
    await fail(store, leased)
    assert await store.due_times.correct() == 0
    assert await due(store) == []


async def test_postponed_receipt_is_due_after_a_correction(store: Store, database: str) -> None:
    (leased,) = await claim_and_lease(store)
    set_clock_back(database, -HOUR)
    assert await store.leases.release([leased.lease_key], 60.0) == 1
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert await due(store) == ["evt_0"]


@pytest.mark.parametrize("is_stray", [False, True])
async def test_receipt_that_is_released_after_the_clock_was_set_back_is_due(
    store: Store, database: str, is_stray: bool
) -> None:
    set_clock_back(database, -HOUR)
    await store.claims.insert([make_claim("evt_0")])
    run_sql(database, "UPDATE webhook_receipts SET next_attempt_at = received_at")  # as after a retry
    (leased,) = await store.leases.take(1, 60, "first")
    set_clock_back(database, HOUR)
    await asyncio.to_thread(extend, store, leased)
    if is_stray:
        assert await store.leases.release_strays("first", []) == 1
    else:
        assert await store.leases.release([leased.lease_key]) == 1
    assert await due(store) == ["evt_0"]


def extend(store: Store, leased: Leased) -> None:
    connection = store.heartbeat_connection()
    connection.extend([leased.lease_key], 60)
    connection.close()


async def test_event_that_is_replayed_while_the_clock_is_ahead_is_due_after_a_correction(
    store: Store, database: str
) -> None:
    (leased,) = await claim_and_lease(store)
    assert await store.leases.settle([processed(leased)]) == {leased.receipt}
    set_clock_back(database, -HOUR)
    assert await store.operations.replay([leased.receipt], "ada", {}) == [leased.receipt]
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert await due(store) == ["evt_0"]


async def test_retry_that_a_person_requests_while_the_clock_is_ahead_is_due_after_a_correction(
    store: Store, database: str
) -> None:
    (leased,) = await claim_and_lease(store)
    await fail(store, [leased], after=24 * 3600.0)
    set_clock_back(database, -HOUR)
    assert await store.operations.retry_now([leased.receipt], "ada", {}) == [leased.receipt]
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert await due(store) == ["evt_0"]


async def test_held_receipt_without_a_handler_is_due_when_it_is_released(store: Store, database: str) -> None:
    leased = await claim_and_lease(store)
    set_clock_back(database, -HOUR)
    await fail(store, leased)
    run_sql(database, "UPDATE webhook_receipts SET unhandled_at = received_at")
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    run_sql(database, "UPDATE webhook_receipts SET unhandled_at = NULL")
    assert await due(store) == ["evt_0"]


REQUEST_EFFECT = (
    "INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status) "
    "VALUES ('s', 'k', 'call', 'send', '{}', 'stripe', 1, 'waiting')"
)


async def test_effect_that_is_requested_while_the_clock_is_ahead_is_due_after_a_correction(
    store: Store, database: str
) -> None:
    await store.claims.insert([make_claim("evt_0")])
    set_clock_back(database, -HOUR)
    run_sql(database, REQUEST_EFFECT)
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    assert [effect.key for effect in await store.effects.lease(1, "second", TARGETS)] == ["k"]
    assert await store.due_times.correct() == 0


async def test_retry_of_an_effect_is_due_after_a_correction(store: Store, database: str) -> None:
    await store.claims.insert([make_claim("evt_0")])
    run_sql(database, REQUEST_EFFECT)
    (effect,) = await store.effects.lease(1, "first", TARGETS)
    set_clock_back(database, -HOUR)
    failed = SettledEffect(effect.id, effect.lease, EffectState.RETRYING, after=60.0)
    assert await store.effects.settle([failed]) == {effect.id}
    set_clock_back(database, HOUR)
    assert await store.effects.lease(1, "second", TARGETS) == []
    assert await store.due_times.correct() == 1
    assert [effect.key for effect in await store.effects.lease(1, "second", TARGETS)] == ["k"]


async def test_pause_that_begins_while_the_clock_is_ahead_keeps_its_length(store: Store, database: str) -> None:
    await store.pauses.pause("early", "ada", seconds=2 * HOUR)
    set_clock_back(database, -HOUR)
    await store.pauses.pause("stripe", "ada", seconds=600)
    await store.pauses.pause("github", "ada")
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 1
    set_clock_back(database, -601)
    assert [pause.source for pause in await store.pauses.active()] == ["early", "github"]


async def test_process_that_died_while_the_clock_was_ahead_is_live_for_another_minute(
    store: Store, database: str
) -> None:
    set_clock_back(database, -HOUR)
    await store.roster.register("dead", {MAIN: Handled((("stripe", "*"),))})
    set_clock_back(database, HOUR)
    assert await store.due_times.correct() == 0
    assert [row.worker for row in await store.roster.live_handlers()] == ["dead"]
    set_clock_back(database, -61)
    assert await store.roster.live_handlers() == []


async def test_two_processes_correct_all_pages_and_a_repeated_correction_changes_nothing(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_times, "FOUND", 3)
    monkeypatch.setattr(due_times, "PAGE", 2)
    leased = await claim_and_lease(store, 5)
    set_clock_back(database, -HOUR)
    await fail(store, leased)
    set_clock_back(database, HOUR)
    async with open_store(database) as other:
        counts = await asyncio.gather(store.due_times.correct(), other.due_times.correct())
    assert sum(counts) == 5, f"two processes corrected {counts} receipts"
    assert await store.due_times.correct() == 0
    assert len(await due(store)) == 5


class LockedRows:
    """Stands in for an executor: another process has locked all rows that a search finds."""

    dialect = SQLITE

    def __init__(self) -> None:
        self.searches = 0

    async def scan(self, name: str, parameters: dict[str, int]) -> list[tuple[int]]:
        self.searches += 1
        assert self.searches <= 2, "rows that another process has locked are searched again and again"
        return [(number,) for number in range(parameters["limit"])]

    async def write(self, name: str, parameters: object = None) -> list[tuple[int]]:
        return []


async def test_rows_that_another_process_has_locked_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_times, "FOUND", 3)
    executor = LockedRows()
    assert await due_times.SqlDueTimeStore(executor).correct() == 0  # type: ignore[arg-type]
    assert executor.searches == 2, "one of receipts, and one of effects"
