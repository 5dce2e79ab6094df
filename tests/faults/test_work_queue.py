"""Workers that SQS feeds: kills, copies, forged and lost messages under load apply each event exactly once."""

import asyncio
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.aws import Moto
from tests.support.counts import KILLS, Repetitions, count
from tests.support.events import stripe_body
from tests.support.recording_senders import Ledger, send
from tests.support.serve import Process, write_config
from tests.support.servers import run_sql
from tests.support.waiting import eventually, pause_at_random
from tests.support.work_queue import WorkQueue
from tests.support.worker_process import DONE, LEASE, UNFINISHED, WorkerProcess, until_count

pytestmark = pytest.mark.anyio


class Senders:
    """Delivers events to an inbox, and disturbs its queue."""

    def __init__(self, inbox: Inbox, queue: WorkQueue, chance: random.Random) -> None:
        self.inbox = inbox
        self.queue = queue
        self.chance = chance
        self.acked = 0

    async def deliver(self, count: int) -> None:
        """Deliver new events, and some of them twice."""
        for _ in range(count):
            body = stripe_body(f"evt_{self.acked:06d}")
            assert (await deliver(self.inbox, "stripe", body)).outcome == (202, "accepted")
            self.acked += 1
            if self.chance.random() < 0.2:
                assert (await deliver(self.inbox, "stripe", body)).outcome == (200, "duplicate")

    def disturb(self) -> None:
        """Copy and forge messages, and lose some."""
        some = [self.chance.randrange(1, self.acked + 20) for _ in range(5)]
        self.queue.put("not a message", *(json.dumps({"receipt": number}) for number in some))
        if self.chance.random() < 0.5:
            self.queue.lose()


async def kill_again_and_again(inbox: Inbox, database: str, queue: WorkQueue, kills: int) -> int:
    """Kill one of two workers again and again. Returns the number of events, each of which was applied once."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")
        senders = Senders(inbox, queue, chance)
        workers = [WorkerProcess(database), WorkerProcess(database)]
        try:
            for _ in range(kills):
                before = run_sql(database, DONE)[0][0]
                await senders.deliver(chance.randrange(10, 40))
                senders.disturb()
                await until_count(database, DONE, lambda done, before=before: done > before)  # type: ignore[misc]
                await pause_at_random(chance, 0.05)
                victim = chance.randrange(2)
                workers[victim].end()
                count(KILLS)
                workers[victim] = WorkerProcess(database)
            await until_count(database, UNFINISHED, lambda left: left == 0)
            await eventually(lambda: queue.is_empty, "messages of finished events are deleted", within=60)
        finally:
            codes = [worker.end(signal.SIGTERM) for worker in workers]
    applied = run_sql(database, "SELECT event_id, twice FROM ledger ORDER BY event_id")
    expected = [(f"evt_{number:06d}",) * 2 for number in range(senders.acked)]
    assert applied == expected, f"an event was lost or applied twice: seed {seed}"
    statuses = run_sql(database, "SELECT status, count(*) FROM webhook_receipts GROUP BY status")
    assert statuses == [("processed", senders.acked)], f"seed {seed}"
    assert codes == [0, 0], "a worker did not end cleanly"
    return senders.acked


@pytest.fixture
def queue(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> WorkQueue:
    """The queue of this process and of the workers that it starts."""
    queue = WorkQueue(aws)
    monkeypatch.setenv("ONCEHOOK_QUEUE", f"sqs:{queue.url}")
    return queue


Make = Callable[..., Inbox]


@pytest.mark.rest
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_kills_of_workers_with_a_disturbed_queue_apply_each_event_once(
    make_inbox: Make, database: str, queue: WorkQueue
) -> None:
    assert await kill_again_and_again(make_inbox(lease=LEASE), database, queue, 2) >= 20


@pytest.mark.rest
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_events_that_a_killed_receiver_acked_and_did_not_send_are_processed(
    database: str, queue: WorkQueue, tmp_path: Path
) -> None:
    """SIGKILL of `oncehook serve --no-worker` under load, between the commits and the sends of many events."""
    run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")
    senders = Ledger(random.randrange(2**32))
    service = Process(write_config(tmp_path, database), "--no-worker")
    sending = [asyncio.create_task(send(senders, service.port)) for _ in range(4)]
    await senders.until_more(40)
    service.kill()
    await asyncio.wait_for(asyncio.gather(*sending), 10)
    worker = WorkerProcess(database)
    try:
        await until_count(database, UNFINISHED, lambda left: left == 0)
    finally:
        assert worker.end(signal.SIGTERM) == 0
    applied = [event_id for (event_id,) in run_sql(database, "SELECT event_id FROM ledger")]
    detail = f"repeat with Ledger({senders.seed})"
    assert len(applied) == len(set(applied)), f"an event was applied twice: {detail}"
    assert set(applied) >= senders.acked and not senders.odd, f"an acked event is missing: {detail}"


@pytest.mark.torture
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_many_kills_of_workers_with_a_disturbed_queue_apply_each_event_once(
    make_inbox: Make, database: str, queue: WorkQueue, repetitions: Repetitions
) -> None:
    kills = repetitions(15, 100)
    assert await kill_again_and_again(make_inbox(lease=LEASE), database, queue, kills) >= 10 * kills


@pytest.mark.rest
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_worker_that_is_stopped_past_its_lease_and_visibility_commits_nothing_twice(
    make_inbox: Make, database: str, queue: WorkQueue
) -> None:
    """SIGSTOP: the message and the lease both go to another worker, and the fence keeps the first from committing."""
    inbox = make_inbox(lease=LEASE)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL, twice TEXT)")
        first = WorkerProcess(database, "0.5")
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        running = "SELECT count(*) FROM webhook_receipts WHERE status = 'processing'"
        await until_count(database, running, lambda count: count == 1)
        first.send(signal.SIGSTOP)
        second = WorkerProcess(database, "0.01")
        try:
            await until_count(database, DONE, lambda done: done == 1)
            first.send(signal.SIGCONT)
            await eventually(lambda: queue.is_empty, "the message is deleted")
        finally:
            codes = [first.end(signal.SIGTERM), second.end(signal.SIGTERM)]
    assert run_sql(database, "SELECT event_id FROM ledger") == [("evt_1",)]
    assert codes == [0, 0]
