"""The monitor of a read replica measures its lag by positions, and decides whether it is read. It never writes."""

from typing import Any

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store import replica
from oncehook.store.replica import Position, ReadExecutor, Refused, ReplicaDatabase, ReplicaMonitor, Standby
from oncehook.store.store import Store
from tests.support.clocks import ManualClock

pytestmark = pytest.mark.anyio


def check(
    monitor: ReplicaMonitor, primary: int, standby: int, *, database: str = "1/5", is_standby: bool = True
) -> None:
    at = monitor.clock.monotonic()
    monitor.record(at, Position("1/5", primary, False), Position(database, standby, is_standby))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def monitor(clock: ManualClock) -> ReplicaMonitor:
    return ReplicaMonitor(10.0, clock)


def test_standby_is_not_used_before_its_first_check(monitor: ReplicaMonitor) -> None:
    assert monitor.lag is None and not monitor.is_usable
    assert monitor.state == "not used: it was not checked yet"


def test_standby_that_replayed_everything_has_no_lag(monitor: ReplicaMonitor) -> None:
    check(monitor, 100, 100)
    assert monitor.lag == 0.0 and monitor.is_usable and monitor.state == "0.0 s behind"


def test_idle_primary_and_standby_have_no_lag_however_long(monitor: ReplicaMonitor, clock: ManualClock) -> None:
    check(monitor, 100, 100)
    clock.advance(3600)
    check(monitor, 100, 100)
    assert monitor.lag == 0.0


def test_lag_is_the_age_of_the_newest_position_that_was_replayed(monitor: ReplicaMonitor, clock: ManualClock) -> None:
    for position in (100, 200, 300):
        check(monitor, position, 100)
        clock.advance(2)
    assert monitor.lag == 6.0 and monitor.is_usable
    check(monitor, 400, 250)
    assert monitor.lag == 4.0


def test_lag_grows_while_the_standby_receives_nothing(monitor: ReplicaMonitor, clock: ManualClock) -> None:
    check(monitor, 100, 100)
    for position in range(101, 112):
        clock.advance(1)
        check(monitor, position, 100)
    assert monitor.lag == 11.0 and not monitor.is_usable
    assert monitor.state == "11.0 s behind: not used, because that is too much"


def test_after_a_change_the_standby_is_read_only_when_it_has_the_change(
    monitor: ReplicaMonitor, clock: ManualClock
) -> None:
    check(monitor, 100, 100)
    clock.advance(0.5)
    monitor.note_change()
    assert not monitor.is_usable
    clock.advance(0.5)
    check(monitor, 120, 110)
    assert not monitor.is_usable, "the standby has only replayed what was written before the change"
    check(monitor, 120, 120)
    assert monitor.is_usable


def test_another_database_or_a_promoted_standby_is_not_read(monitor: ReplicaMonitor) -> None:
    check(monitor, 100, 100, database="2/5")
    assert not monitor.is_usable and monitor.state == "not used: it is no standby of `database`"
    check(monitor, 100, 100, is_standby=False)
    assert not monitor.is_usable and monitor.state == "not used: it is not a standby any more"
    check(monitor, 100, 100)
    assert monitor.is_usable


def test_positions_of_an_earlier_primary_are_forgotten(monitor: ReplicaMonitor, clock: ManualClock) -> None:
    """After a failover, the new primary may be behind the old one. A standby may then be ahead, with lost commits."""
    check(monitor, 300, 200)
    clock.advance(1)
    check(monitor, 250, 200)
    assert monitor.lag is None and not monitor.is_usable


class Answering:
    """An executor that returns its own name, or fails."""

    dialect: Any = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_down = False

    async def read(self, name: str, parameters: Any = None) -> list[Any]:
        if self.is_down:
            raise StoreUnavailable("down")
        return [self.name]

    scan = read
    write: Any = None
    transaction: Any = None
    as_unavailable: Any = None


async def test_reads_fall_back_to_the_primary(monitor: ReplicaMonitor, clock: ManualClock) -> None:
    standby, primary = Answering("standby"), Answering("primary")
    executor = ReadExecutor(standby, primary, monitor)
    assert await executor.read("sources") == await executor.scan("sources") == ["primary"]
    check(monitor, 100, 100)
    assert await executor.read("sources") == await executor.scan("sources") == ["standby"]
    standby.is_down = True
    assert await executor.read("sources") == await executor.scan("sources") == ["primary"]
    primary.is_down = True
    with pytest.raises(StoreUnavailable):
        await executor.read("sources")


async def test_store_of_a_replica_refuses_everything_but_reads(closed_store: Store, monitor: ReplicaMonitor) -> None:
    class Nowhere:
        executor: Any = Answering("standby")
        open = close = position = primary_position = None

    standby: Any = Nowhere()
    store = Store(ReplicaDatabase(closed_store.database, standby, monitor))
    for call in (
        lambda: store.claims.insert([]),
        lambda: store.leases.expired(1, 0),
        lambda: store.retention.start_pruning(),
        lambda: store.wakeups.notify(),
        lambda: store.transaction(),
        lambda: store.heartbeat_connection(),
    ):
        with pytest.raises(RuntimeError, match=replica.REFUSED):
            call()
    for writing in (
        store.operations.replay([1], "me", {}),
        store.operations.audit("me", "replay", {}),
        store.leadership.take("prune", 1.0),
        store.roster.renew("worker"),
    ):
        with pytest.raises(RuntimeError, match=replica.REFUSED):
            await writing
    assert isinstance(store.claims, Refused) and Standby is not None
