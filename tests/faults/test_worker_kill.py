"""SIGKILL and SIGSTOP of workers at random under load: each event's work is applied exactly once."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from oncehook import Inbox
from tests.support.events import make_claim
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

LEASE = 1.0
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status NOT IN ('processed', 'failed', 'ignored')"
DONE = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"


class WorkerProcess:
    """A worker that a test may treat badly."""

    def __init__(self, database: str, *options: str, module: str = "tests.faults.ledger_worker") -> None:
        command = [sys.executable, "-m", module, database, str(LEASE), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@asynccontextmanager
async def filled(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[Callable[[int], object]]:
    """A ledger, and a way to claim so many new events."""
    inbox = make_inbox(worker=False)
    claimed = 0
    async with inbox.lifespan():
        ask(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")

        async def claim(count: int) -> None:
            nonlocal claimed
            await inbox._runtime.store.claims.insert(
                [make_claim(f"evt_{n:06d}") for n in range(claimed, claimed + count)]
            )
            claimed += count

        yield claim


async def until_count(database: str, statement: str, condition: Callable[[int], bool]) -> None:
    """Wait until the number that the statement returns fulfils the condition."""
    await eventually(lambda: condition(ask(database, statement)[0][0]), statement, within=60)


def check(database: str, seed: int) -> None:
    told = f"seed {seed}"
    rows = ask(database, "SELECT event_id, twice FROM ledger")
    receipts = ask(database, "SELECT event_id, status FROM webhook_receipts")
    assert len(rows) == len({row[0] for row in rows}), f"an event's work was applied twice: {told}"
    assert {row[0] for row in rows} == {row[0] for row in receipts}, f"an event's work is missing: {told}"
    assert all(event_id == twice for event_id, twice in rows), f"half of an event's work was kept: {told}"
    assert {row[1] for row in receipts} == {"processed"}, f"not every event ended: {told}"


async def kill_workers(make_inbox: Callable[..., Inbox], database: str, kills: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with filled(make_inbox, database) as claim:
        workers = [WorkerProcess(database), WorkerProcess(database)]
        try:
            for _ in range(kills):
                before = ask(database, DONE)[0][0]
                await claim(chance.randrange(20, 80))  # type: ignore[misc]
                await until_count(database, DONE, lambda done, before=before: done > before)  # type: ignore[misc]
                await asyncio.sleep(chance.random() * 0.05)  # anywhere between two commits
                victim = chance.randrange(2)
                workers[victim].end()
                workers[victim] = WorkerProcess(database)
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    check(database, seed)
    assert codes == [0, 0], "a worker did not end cleanly"


async def test_kills_of_workers_under_load_apply_each_event_once(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    await kill_workers(make_inbox, database, 4)


@pytest.mark.torture
async def test_three_hundred_kills_of_workers_apply_each_event_once(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    await kill_workers(make_inbox, database, 300)


async def test_a_worker_that_slept_past_its_lease_cannot_commit(postgres: Postgres) -> None:
    """On PostgreSQL: a stopped process that holds SQLite's one write lock stops every other process with it."""
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
    check(database, 0)
    assert codes == [0, 0]


async def test_two_workers_share_the_work(postgres: Postgres) -> None:
    """Each does at least a quarter, however late it was woken: a handler takes long enough for the other to come."""
    database = postgres.database(migrated=True)
    async with filled(lambda **settings: Inbox(database, **settings), database) as claim:
        workers = [WorkerProcess(database, "0.1"), WorkerProcess(database, "0.1")]
        try:
            await claim(400)  # type: ignore[misc]
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    check(database, 0)
    shares = ask(database, "SELECT worker, count(*) FROM webhook_attempts WHERE outcome = 'processed' GROUP BY worker")
    assert len(shares) == 2 and min(count for _, count in shares) >= 100, shares
    assert codes == [0, 0]
