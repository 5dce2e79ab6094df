"""The backlog: which sources a worker must skip, and the due time from which it leases."""

import pytest

from oncehook.model.patterns import Handled
from oncehook.model.rows import DueWindow
from oncehook.store.backlog import LAST_KEY, SEARCH_INTERVAL_FACTOR, WINDOW, Backlog
from tests.support.clocks import ManualClock

pytestmark = pytest.mark.anyio

EARLIEST = ""
RECENTLY = "2026-11-15T12:00:00Z"


class Database:
    """Answers the queries of a backlog, and counts them."""

    def __init__(self, *windows: DueWindow, paused: tuple[str, ...] = ()) -> None:
        self.windows = list(windows)
        self.paused = list(paused)
        self.refreshes = 0
        self.starts: list[str] = []

    async def sources(self) -> list[str]:
        self.refreshes += 1
        return self.paused

    async def window(self, after: str, size: int) -> DueWindow:
        self.starts.append(after)
        return self.windows.pop(0)


def full(last: str, first: str | None = None) -> DueWindow:
    return DueWindow(first=first, last=last, number=WINDOW, lately=RECENTLY)


async def test_floor_stays_at_the_earliest_time_if_nothing_is_paused() -> None:
    database, backlog = Database(), Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert (backlog.floor, database.starts) == (EARLIEST, [])


async def test_refresh_queries_the_database_at_most_once_a_second() -> None:
    clock, database = ManualClock(), Database()
    backlog = Backlog(clock, EARLIEST)
    for _ in range(5):
        await backlog.refresh(database.sources, database.window)
    assert database.refreshes == 1
    clock.advance(1.1)
    await backlog.refresh(database.sources, database.window)
    assert database.refreshes == 2


async def test_invalidated_backlog_refreshes_immediately() -> None:
    database, backlog = Database(), Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    backlog.invalidate()
    await backlog.refresh(database.sources, database.window)
    assert database.refreshes == 2


async def test_floor_is_the_first_receipt_behind_full_windows_of_paused_receipts() -> None:
    windows = [full("2026-11-15T01"), full("2026-11-15T02"), full("2026-11-15T04", first="2026-11-15T03")]
    database = Database(*windows, paused=("stripe",))
    backlog = Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert backlog.floor == "2026-11-15T03"
    assert database.starts == [EARLIEST, "2026-11-15T01", "2026-11-15T02"]


async def test_floor_is_never_later_than_a_second_ago() -> None:
    """A transaction that commits late may add receipts that were due before those already seen."""
    later = "2026-11-15T12:00:05Z"
    database = Database(DueWindow(first=later, last=later, number=1, lately=RECENTLY), paused=("stripe",))
    backlog = Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert backlog.floor == RECENTLY


async def test_search_stops_at_a_full_window_of_one_due_time() -> None:
    database = Database(full("2026-11-15T01"), full("2026-11-15T01"), paused=("stripe",))
    backlog = Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert backlog.floor == "2026-11-15T01"


async def test_next_search_waits_twenty_times_as_long_as_the_last_one_took() -> None:
    clock = ManualClock()
    database = Database(
        full("2026-11-15T02", "2026-11-15T01"), full("2026-11-15T04", "2026-11-15T03"), paused=("stripe",)
    )
    backlog = Backlog(clock, EARLIEST)

    async def search(after: str, size: int) -> DueWindow:
        clock.advance(0.5)
        return await database.window(after, size)

    await backlog.refresh(database.sources, search)
    for _ in range(4):
        clock.advance(2)
        await backlog.refresh(database.sources, search)
    assert (database.refreshes, len(database.starts), backlog.floor) == (5, 1, "2026-11-15T01")
    clock.advance(SEARCH_INTERVAL_FACTOR * 0.5 - 4 * 2)
    await backlog.refresh(database.sources, search)
    assert (len(database.starts), backlog.floor) == (2, "2026-11-15T03")


async def test_search_does_not_wait_after_a_new_pause() -> None:
    clock = ManualClock()
    database = Database(
        full("2026-11-15T02", "2026-11-15T01"), full("2026-11-15T04", "2026-11-15T03"), paused=("stripe",)
    )
    backlog = Backlog(clock, EARLIEST)

    async def search(after: str, size: int) -> DueWindow:
        clock.advance(5)
        return await database.window(after, size)

    await backlog.refresh(database.sources, search)
    database.paused = ["stripe", "github"]
    clock.advance(1)
    await backlog.refresh(database.sources, search)
    assert (len(database.starts), backlog.floor) == (2, "2026-11-15T03")


async def test_floor_is_reset_when_the_last_pause_ends() -> None:
    clock = ManualClock()
    database = Database(full("2026-11-15T02", first="2026-11-15T01"), paused=("stripe",))
    backlog = Backlog(clock, EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert backlog.floor == "2026-11-15T01"
    database.paused = []
    clock.advance(2)
    await backlog.refresh(database.sources, database.window)
    assert (backlog.floor, backlog.sources) == (EARLIEST, frozenset())


HERE, THERE = ("stripe", "*"), ("github", "push")


@pytest.mark.parametrize("after", [Handled((HERE,)), Handled((HERE, THERE)), Handled((HERE, THERE), is_shared=True)])
async def test_floor_is_searched_again_when_the_handled_types_change(after: Handled) -> None:
    """A process takes over the backlog of another one, which was before the floor."""
    clock = ManualClock()
    database = Database(full("2026-11-15T09", first="2026-11-15T08"), full("2026-11-15T02", first="2026-11-15T01"))
    backlog = Backlog(clock, EARLIEST)

    async def search(after: str, size: int) -> DueWindow:
        clock.advance(5)  # so that the next search would have to wait
        return await database.window(after, size)

    await backlog.refresh(database.sources, search, Handled((HERE,), is_shared=True))
    assert backlog.floor == "2026-11-15T08"
    clock.advance(2)
    await backlog.refresh(database.sources, search, after)
    assert backlog.floor == ("2026-11-15T01" if after.is_shared else EARLIEST)


async def test_floor_is_reset_when_the_last_source_with_tenants_is_gone() -> None:
    clock, database = ManualClock(), Database(full("2026-11-15T02", first="2026-11-15T01"))
    backlog = Backlog(clock, EARLIEST)
    await backlog.refresh(database.sources, database.window, has_tenants=True)
    assert backlog.floor == "2026-11-15T01"
    clock.advance(2)
    await backlog.refresh(database.sources, database.window, has_tenants=False)
    assert backlog.floor == EARLIEST


async def test_process_may_lease_only_sources_that_it_handles_and_that_are_not_paused() -> None:
    database = Database(full("b", first="a"), paused=("stripe",))
    backlog = Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window, Handled((("stripe", "*"), ("github", "push"))))
    assert [backlog.may_lease(source) for source in ("stripe", "github", "shopify")] == [False, True, False]


async def test_serial_scan_skips_all_keys_of_a_paused_source() -> None:
    database = Database(full("b", first="a"), paused=("stripe",))
    backlog = Backlog(ManualClock(), EARLIEST)
    await backlog.refresh(database.sources, database.window)
    assert backlog.skip_source(("stripe", "in_1")) == ("stripe", LAST_KEY)
    assert backlog.skip_source(("github", "in_1")) == ("github", "in_1")
    assert backlog.skip_source(("", "")) == ("", "")
