"""The fence: a lost lease can neither settle, release nor keep its receipt, and a batch commits whole or not at all."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from oncehook import Inbox
from oncehook.concurrency import quarantine as alone
from oncehook.config.settings import Settings
from oncehook.handlers.registry import Handlers
from oncehook.model.lease import Leased, Settled
from oncehook.model.states import State
from oncehook.store import make_store
from oncehook.store.store import Store
from oncehook.worker import rescue
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.settle import Settler
from tests.support.events import Rows, make_claim
from tests.support.servers import Postgres, ask, private_postgres
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ROW = "SELECT status, lease, attempts FROM webhook_receipts ORDER BY id"


async def leased(store: Store, count: int = 1, seconds: float = 60) -> list[Leased]:
    await store.claims.insert([make_claim(f"evt_{number}") for number in range(count)])
    return await store.leases.take(count, seconds, "first")


async def take_away(store: Store, one: Leased) -> Leased:
    """What happens to a receipt whose lease ran out: it is taken back, and another worker leases it."""
    crashed = Settled(one.receipt, one.lease, State.RETRYING, "crashed", after=0.0, crashed=True)
    assert await store.leases.settle([crashed]) == {one.receipt}
    again: list[Leased] = []
    while not again:  # it is due with the database's next tick
        again = await store.leases.take(1, 60, "second", rescued=True)
    assert again[0].receipt == one.receipt and again[0].lease > one.lease
    return again[0]


def done(one: Leased) -> Settled:
    return Settled(one.receipt, one.lease, State.PROCESSED, "processed", handler="h", version="v", seconds=0.1)


@pytest.mark.parametrize("status", [State.PROCESSED, State.RETRYING, State.FAILED])
async def test_a_lost_lease_settles_nothing(store: Store, rows: Rows, status: State) -> None:
    (one,) = await leased(store)
    again = await take_away(store, one)
    before = rows(ROW)
    assert await store.leases.settle([Settled(one.receipt, one.lease, status, status.value, after=1.0)]) == set()
    assert rows(ROW) == before == [("processing", again.lease, 2)]


async def test_a_lost_lease_releases_nothing(store: Store, rows: Rows) -> None:
    (one,) = await leased(store)
    await take_away(store, one)
    before = rows(ROW)
    assert await store.leases.release([one.held]) == 0
    assert rows(ROW) == before


async def test_a_heartbeat_of_a_lost_lease_does_not_keep_the_receipt(store: Store, rows: Rows) -> None:
    (one,) = await leased(store)
    again = await take_away(store, one)
    until_when = "SELECT lease_until FROM webhook_receipts"
    before = rows(until_when)
    heart = store.heartbeat_connection()

    def beat() -> list[Any]:
        """In one thread, as the heartbeat's own: the lost lease, then the one that holds."""
        try:
            heart.extend([one.held], 3600)
            after_lost = rows(until_when)
            heart.extend([again.held], 3600)
            return [after_lost, rows(until_when)]
        finally:
            heart.close()

    after_lost, after_own = await asyncio.to_thread(beat)
    assert after_lost == before, "the first worker must not extend the second's lease"
    assert after_own != before


async def test_a_batch_of_which_one_lease_was_lost_leaves_nothing(store: Store, rows: Rows, database: str) -> None:
    ask(database, "CREATE TABLE ledger (note TEXT)")
    batch = await leased(store, 3)
    again = await take_away(store, batch[1])
    transaction = store.transaction()
    connection = await transaction.connection()
    await connection.execute("INSERT INTO ledger VALUES ('of the batch')")
    assert await transaction.settle([done(one) for one in batch]) is False
    assert rows("SELECT * FROM ledger") == []
    assert [row[:2] for row in rows(ROW)] == [
        ("processing", batch[0].lease),
        ("processing", again.lease),
        ("processing", batch[2].lease),
    ]


async def test_settling_together_tells_each_whether_its_own_lease_held(store: Store) -> None:
    one, other = await leased(store, 2)
    await take_away(store, other)
    settler = Settler(store.leases)
    assert await asyncio.gather(settler.settle(done(one)), settler.settle(done(other))) == [True, False]


async def test_a_failed_attempt_ends_the_isolation_that_a_crash_began(store: Store) -> None:
    (one,) = await leased(store)
    again = await take_away(store, one)
    assert await store.leases.settle([Settled(again.receipt, again.lease, State.RETRYING, "retrying", after=0.0)])
    found: list[Leased] = []
    deadline = time.monotonic() + 10
    while not found and time.monotonic() < deadline:
        found = await store.leases.take(1, 60, "third")
    assert [row.receipt for row in found] == [one.receipt], "it runs beside others again"


async def test_a_replay_keeps_the_attempt_that_ended_well(store: Store) -> None:
    (one,) = await leased(store)
    assert await store.leases.settle([done(one)]) == {one.receipt}
    assert await store.operations.replay([one.receipt], "ops", {}) == [one.receipt]
    assert [row.outcome for row in await store.receipts.attempts(one.receipt)] == ["processed"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # SQLite's clock is this process's
async def test_a_lease_runs_by_the_clock_of_the_database(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    await leased(store, seconds=60)
    monkeypatch.undo()
    ((left,),) = rows("SELECT extract(epoch FROM lease_until - now())::float FROM webhook_receipts")
    assert 0 < left <= 60


# -- heartbeats -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def heartbeat(store: Store) -> AsyncIterator[Heartbeat]:
    beating = Heartbeat(store.heartbeat_connection(), 1.0)
    beating.start()
    yield beating
    await asyncio.to_thread(beating.stop)


async def test_a_lease_is_kept_while_the_loop_is_blocked(store: Store, heartbeat: Heartbeat) -> None:
    (one,) = await leased(store, seconds=1.0)
    heartbeat.hold(one.held, 60.0)
    time.sleep(3)  # as a handler that does not give the loop back
    assert await store.leases.expired(10, 0) == []


async def test_a_lease_is_kept_no_longer_than_the_handlers_timeout(store: Store, heartbeat: Heartbeat) -> None:
    (one,) = await leased(store, seconds=1.0)
    heartbeat.hold(one.held, 1.5)
    async with asyncio.timeout(20):
        while not await store.leases.expired(10, 0):
            await asyncio.sleep(0.05)


# -- rows that somebody holds ---------------------------------------------------------------------------------------


@contextmanager
def held_row(database: str, receipt: int) -> Iterator[None]:
    """Another session has the row locked, as a hung handler's has between its last statement and COMMIT."""
    with psycopg.connect(database) as connection:
        connection.execute("SELECT 1 FROM webhook_receipts WHERE id = %s FOR UPDATE", [receipt])
        yield


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_rescue_passes_by_rows_that_somebody_holds(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "PAGE", 1)
    both = await leased(store, 2, seconds=0.0)
    with held_row(database, both[0].receipt):
        async with asyncio.timeout(5):
            assert await rescue.rescue(store, Handlers(), {}) == 1
    assert [row[0] for row in rows(ROW)] == ["processing", "retrying"]


# -- quarantine -----------------------------------------------------------------------------------------------------


async def test_nothing_is_started_beside_a_receipt_whose_worker_died(
    make_inbox: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "EVERY", 0.1)  # its turn comes while others are leased ahead
    inbox: Inbox = make_inbox(worker=False, concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    running: set[str] = set()
    beside: list[set[str]] = []

    @inbox.on("stripe", "*")
    async def handle(event: Any) -> None:
        running.add(event.id)
        for _ in range(10):
            await asyncio.sleep(0.01)
            if "evt_0" in running:
                beside.append(running - {"evt_0"})
        running.discard(event.id)

    async with inbox.lifespan():
        (one,) = await leased(inbox._runtime.store)
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 31)])
        inbox._runtime.start_worker()
        await eventually(lambda: bool(running))
        crashed = Settled(one.receipt, one.lease, State.RETRYING, "crashed", after=0.0, crashed=True)
        await inbox._runtime.store.leases.settle([crashed])
        finished = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"
        await eventually(lambda: ask(database, finished) == [(31,)])
    assert beside and set().union(*beside) == set()


# -- durability -----------------------------------------------------------------------------------------------------


async def test_a_claim_is_on_disk_when_it_returns_though_nobody_else_writes() -> None:
    """Every process of PostgreSQL is killed at once, and its WAL writer would not have written for ten seconds."""
    with private_postgres(wal_writer_delay="10s", autovacuum="off") as server:
        database = server.database()
        store = make_store(Settings(database=database))
        await store.open()
        try:
            await store.claims.insert([make_claim("evt_0")])
            await store.claims.insert([make_claim("evt_1")])
            await asyncio.to_thread(restart_after_kill, server)
        finally:
            await store.close()
        assert ask(database, "SELECT event_id FROM webhook_receipts ORDER BY id") == [("evt_0",), ("evt_1",)]


def restart_after_kill(server: Postgres) -> None:
    server.stop(kill=True)
    server.start()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_handlers_commit_is_on_disk_too(store: Store) -> None:
    transaction = store.transaction()
    connection = await transaction.connection()
    assert await connection.fetchval("PRAGMA synchronous") == 2  # FULL
    await transaction.rollback()
