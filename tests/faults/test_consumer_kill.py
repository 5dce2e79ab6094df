"""SIGKILL of workers with three consumers, one of which always fails: the other two apply each event exactly once."""

import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.counts import KILLS, Repetitions, count
from tests.support.events import stripe_body
from tests.support.servers import run_sql
from tests.support.waiting import eventually, pause_at_random
from tests.support.worker_process import DONE, UNFINISHED, WorkerProcess, until_count

# Each test starts processes: on SQLite only with --torture, as the statements are tested on both elsewhere.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.torture), "postgres"], indirect=True),
]

WORKER = "tests.faults.consumer_worker"
CONSUMERS = ["ledger", "main", "search"]
DeliverMore = Callable[..., Awaitable[None]]
STATES = "SELECT event_id, consumer, status FROM webhook_receipts"


@asynccontextmanager
async def receiving(make_inbox: Callable[..., Inbox], database: str) -> AsyncIterator[DeliverMore]:
    """Run a receiver without the consumers' code, and return a function that delivers new events to it."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    delivered = 0

    async def deliver_more(count: int, event_id: str = "evt_{:06d}") -> None:
        nonlocal delivered
        for number in range(delivered, delivered + count):
            response = await deliver(inbox, "stripe", stripe_body(event_id.format(number)))
            assert response.outcome == (202, "accepted")
        delivered += count

    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, consumer TEXT NOT NULL)")
        subscribed = inbox._runtime.consumers
        first = WorkerProcess(database, module=WORKER)
        try:
            await eventually(lambda: len(subscribed.stored) == 2, "the receiver learns of the two named consumers")
        finally:
            first.end(signal.SIGTERM)
        yield deliver_more


def assert_each_consumer_has_its_own_outcome(database: str, detail: str) -> int:
    """Returns the number of events."""
    receipts = run_sql(database, STATES)
    events = {event_id for event_id, _, _ in receipts}
    every = {(event_id, consumer) for event_id in events for consumer in CONSUMERS}
    assert Counter((event_id, consumer) for event_id, consumer, _ in receipts) == Counter(every), detail
    outcomes = {"main": "processed", "ledger": "processed", "search": "failed"}
    wrong = [receipt for receipt in receipts if receipt[2] != outcomes[receipt[1]]]
    assert not wrong, f"{wrong[:3]} and {len(wrong)} in total: {detail}"
    applied = Counter(run_sql(database, "SELECT event_id, consumer FROM ledger"))
    expected = Counter(pair for pair in every if pair[1] != "search")
    assert applied == expected, (
        f"twice: {list(applied - expected)[:3]}, missing: {list(expected - applied)[:3]}: {detail}"
    )
    dead = run_sql(database, "SELECT count(*) FROM webhook_dlq")
    assert dead == [(len(events),)], f"one dead letter per event: {detail}"
    return len(events)


async def kill_again_and_again(make_inbox: Callable[..., Inbox], database: str, kills: int) -> int:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with receiving(make_inbox, database) as deliver_more:
        workers = [WorkerProcess(database, module=WORKER) for _ in range(2)]
        try:
            for _ in range(kills):
                before = run_sql(database, DONE)[0][0]
                await deliver_more(chance.randrange(5, 25))
                await until_count(database, DONE, lambda done, before=before: done > before)  # type: ignore[misc]
                await pause_at_random(chance, 0.05)
                victim = chance.randrange(2)
                workers[victim].end()
                count(KILLS)
                workers[victim] = WorkerProcess(database, module=WORKER)
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    assert codes == [0, 0], "a worker did not end cleanly"
    return assert_each_consumer_has_its_own_outcome(database, f"seed {seed}")


@pytest.mark.rest
async def test_kills_of_workers_apply_each_event_once_per_consumer_while_one_always_fails(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    assert await kill_again_and_again(make_inbox, database, 3) >= 15


@pytest.mark.torture
async def test_event_that_kills_the_process_of_one_consumer_makes_no_dead_letter_of_another(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """The first kill costs the others an attempt. After that, the event runs while they run nothing."""
    async with receiving(make_inbox, database) as deliver_more:
        await deliver_more(1, "evt_poison")
        await deliver_more(3)
        workers = [WorkerProcess(database, "2", "0.3", module=WORKER)]

        def has_ended() -> bool:
            return workers[-1].has_ended or run_sql(database, UNFINISHED) == [(0,)]

        try:
            while run_sql(database, UNFINISHED) != [(0,)]:
                await eventually(has_ended, "the worker is killed, or everything is finished")
                if workers[-1].has_ended:
                    workers.append(WorkerProcess(database, "2", "0.3", module=WORKER))
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    assert codes == [-signal.SIGKILL] * 3 + [0], "search has three attempts"
    assert_each_consumer_has_its_own_outcome(database, "an event kills the process of search")


@pytest.mark.torture
async def test_many_kills_of_workers_apply_each_event_once_per_consumer_while_one_always_fails(
    make_inbox: Callable[..., Inbox], database: str, repetitions: Repetitions
) -> None:
    kills = repetitions(14, 100)
    assert await kill_again_and_again(make_inbox, database, kills) >= 5 * kills
