"""SIGKILL and SIGSTOP of workers at random under load: each event's work is applied exactly once."""

import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from oncehook import Inbox
from tests.support.counts import KILLS, Repetitions, count
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.waiting import pause_at_random
from tests.support.worker_process import DONE, UNFINISHED, WorkerProcess, until_count

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def filled(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Callable[[int], object]]:
    """Create a ledger table, and return a function that claims new events."""
    inbox = make_inbox(worker=False)
    claimed = 0
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")

        async def claim(count: int) -> None:
            nonlocal claimed
            await inbox._runtime.store.claims.insert(
                [make_claim(f"evt_{n:06d}") for n in range(claimed, claimed + count)]
            )
            claimed += count

        yield claim


def assert_each_event_was_applied_once(database: str, seed: int) -> None:
    detail = f"seed {seed}"
    rows = run_sql(database, "SELECT event_id, twice FROM ledger")
    receipts = run_sql(database, "SELECT event_id, status FROM webhook_receipts")
    assert len(rows) == len({row[0] for row in rows}), f"an event's work was applied twice: {detail}"
    assert {row[0] for row in rows} == {row[0] for row in receipts}, f"an event's work is missing: {detail}"
    assert all(event_id == twice for event_id, twice in rows), f"half of an event's work was kept: {detail}"
    assert {row[1] for row in receipts} == {"processed"}, f"not every event ended: {detail}"


async def assert_kills_apply_each_event_once(make_inbox: Callable[..., Inbox], database: str, kills: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with filled(make_inbox, database) as claim:
        workers = [WorkerProcess(database), WorkerProcess(database)]
        try:
            for _ in range(kills):
                before = run_sql(database, DONE)[0][0]
                await claim(chance.randrange(20, 80))  # type: ignore[misc]
                await until_count(database, DONE, lambda done, before=before: done > before)  # type: ignore[misc]
                await pause_at_random(chance, 0.05)
                victim = chance.randrange(2)
                workers[victim].end()
                count(KILLS)
                workers[victim] = WorkerProcess(database)
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    assert_each_event_was_applied_once(database, seed)
    assert codes == [0, 0], "a worker did not end cleanly"


@pytest.mark.sampled(1)
async def test_kills_of_workers_under_load_apply_each_event_once(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    await assert_kills_apply_each_event_once(make_inbox, database, 2)


@pytest.mark.torture
async def test_many_kills_of_workers_apply_each_event_once(
    make_inbox: Callable[..., Inbox], database: str, repetitions: Repetitions
) -> None:
    await assert_kills_apply_each_event_once(make_inbox, database, repetitions(60, 300))


async def test_worker_that_was_stopped_past_its_lease_cannot_commit(postgres: Postgres) -> None:
    """Only on PostgreSQL: a stopped process that holds SQLite's write lock blocks every other process."""
    database = postgres.database(migrated=True)
    async with filled(lambda **settings: Inbox(database, **settings), database) as claim:
        zombie = WorkerProcess(database)
        other: WorkerProcess | None = None
        try:
            await claim(150)  # type: ignore[misc]
            await until_count(database, DONE, lambda done: done > 0)
            zombie.send(signal.SIGSTOP)
            other = WorkerProcess(database)
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            zombie.send(signal.SIGCONT)
            codes = [worker.end(signal.SIGTERM) for worker in (zombie, other) if worker is not None]
    assert_each_event_was_applied_once(database, 0)
    assert codes == [0, 0]


@pytest.mark.rest
async def test_two_workers_share_the_work(postgres: Postgres) -> None:
    """Each worker handles at least a quarter of the events, even if it starts late."""
    database = postgres.database(migrated=True)
    async with filled(lambda **settings: Inbox(database, **settings), database) as claim:
        workers = [WorkerProcess(database, "0.1"), WorkerProcess(database, "0.1")]
        try:
            await claim(400)  # type: ignore[misc]
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    assert_each_event_was_applied_once(database, 0)
    shares = run_sql(
        database, "SELECT worker, count(*) FROM webhook_attempts WHERE outcome = 'processed' GROUP BY worker"
    )
    assert len(shares) == 2 and min(count for _, count in shares) >= 100, shares
    assert codes == [0, 0]
