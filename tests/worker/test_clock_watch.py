"""A process notices that the database's clock was set back, and corrects due times."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.errors import StoreUnavailable
from oncehook.model.states import State
from oncehook.worker.clock_watch import CORRECTIONS, ClockWatch
from tests.support.clocks import ManualClock, set_clock_back
from tests.support.stores import claim_and_lease, event_ids, settle

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 18, tzinfo=UTC)


class Database:
    """Stands in for a store: its clock runs with that of the process until `set_back`."""

    def __init__(self) -> None:
        self.operations = self.due_times = self
        self.clock = ManualClock()
        self.behind = 0.0
        self.corrections = 0
        self.is_down = False
        self.reply_seconds = 0.0

    async def now(self) -> datetime:
        time = START + timedelta(seconds=self.clock.at - self.behind)
        self.clock.advance(self.reply_seconds)
        return time

    async def correct(self) -> int:
        if self.is_down:
            raise StoreUnavailable("down")
        self.corrections += 1
        return 0


@pytest.fixture
def database_clock() -> Database:
    return Database()


@pytest.fixture
async def watch(database_clock: Database) -> ClockWatch:
    """A watch whose process has started a while ago."""
    watch = ClockWatch(database_clock, database_clock.clock)  # type: ignore[arg-type]
    for _ in range(CORRECTIONS):
        await watch.check()
    database_clock.corrections = 0
    return watch


async def check_after(watch: ClockWatch, database: Database, seconds: float) -> None:
    database.clock.advance(seconds)
    await watch.check()


async def test_clock_that_runs_is_not_corrected(watch: ClockWatch, database_clock: Database) -> None:
    for _ in range(5):
        await check_after(watch, database_clock, 10.0)
    database_clock.behind -= 3600  # the clock is set ahead
    await check_after(watch, database_clock, 10.0)
    database_clock.behind += 0.5
    await check_after(watch, database_clock, 10.0)
    assert database_clock.corrections == 0


async def test_reply_that_takes_long_is_not_taken_for_a_clock_that_was_set_back(
    watch: ClockWatch, database_clock: Database, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    for database_clock.reply_seconds in (5.0, 0.0, 5.0):
        await check_after(watch, database_clock, 10.0)
    assert (database_clock.corrections, emitted) == (0, [])


@pytest.mark.parametrize("seconds", [2.0, 60.0, 3600.0])
async def test_clock_that_was_set_back_is_corrected_now_and_once_more(
    watch: ClockWatch, database_clock: Database, emitted: list[tuple[str, dict[str, Any]]], seconds: float
) -> None:
    database_clock.behind += seconds
    for _ in range(5):
        await check_after(watch, database_clock, 10.0)
    assert database_clock.corrections == CORRECTIONS
    assert emitted == [("clock_set_back", {"seconds": seconds})]


async def test_correction_that_failed_is_repeated(watch: ClockWatch, database_clock: Database) -> None:
    database_clock.behind += 3600
    database_clock.is_down = True
    for _ in range(CORRECTIONS + 1):
        with pytest.raises(StoreUnavailable):
            await check_after(watch, database_clock, 10.0)
    database_clock.is_down = False
    for _ in range(5):
        await check_after(watch, database_clock, 10.0)
    assert database_clock.corrections == CORRECTIONS, "a correction that failed must not count"


async def test_process_that_starts_after_the_clock_was_set_back_corrects_due_times(
    inbox: Inbox, database: str, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    store = inbox._runtime.store
    leased = await claim_and_lease(store)
    set_clock_back(database, -3600)
    await settle(store, leased, State.RETRYING, after=60.0)
    set_clock_back(database, 3600)
    assert await store.leases.take(1, 60, "worker") == []
    assert await ClockWatch(store).check() == 1
    assert event_ids(await store.leases.take(1, 60, "worker")) == ["evt_0"]
    assert emitted == [("due_times_corrected", {"count": 1})]
