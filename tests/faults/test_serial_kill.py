"""Two worker processes on PostgreSQL, with and without kills: events of one key run one at a time and in order."""

import random
import signal

import pytest

from oncehook import Inbox
from tests.support.counts import KILLS, Repetitions, count
from tests.support.serial_order import check_order
from tests.support.servers import Postgres, run_sql
from tests.support.stores import claims_with_key, interleave
from tests.support.waiting import pause_at_random
from tests.support.worker_process import UNFINISHED, WorkerProcess, until_count

pytestmark = pytest.mark.anyio

KEYS = [f"in_{n}" for n in range(6)]
NOTES = "SELECT key, number, what FROM spans ORDER BY id"


def worker(database: str) -> WorkerProcess:
    return WorkerProcess(database, module="tests.faults.serial_worker")


async def assert_keys_run_in_order(postgres: Postgres, kills: int, each: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    database = postgres.database(migrated=True)
    inbox = Inbox(database, worker=False)
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE spans (id bigserial, key text, number integer, what text)")
        workers = [worker(database), worker(database)]
        try:
            for start in range(0, each, 10):
                await inbox._runtime.reception.claimer.claim(
                    interleave(*(claims_with_key(key, 10, start) for key in KEYS))
                )
            for _ in range(kills):
                # A worker may have finished everything while the other one started.
                enough = min(run_sql(database, "SELECT count(*) FROM spans")[0][0] + 10, 2 * each * len(KEYS) - 1)
                await until_count(database, "SELECT count(*) FROM spans", lambda now, enough=enough: now > enough)  # type: ignore[misc]
                await pause_at_random(chance, 0.03)
                victim = chance.randrange(2)
                workers[victim].end()
                count(KILLS)
                workers[victim] = worker(database)
            await until_count(database, UNFINISHED, lambda left: left == 0)
        finally:
            codes = [process.end(signal.SIGTERM) for process in workers]
    notes = [tuple(row) for row in run_sql(database, NOTES)]
    done = check_order(notes, crashes=kills > 0)
    # A worker that was killed between the end of its handler and its commit has its event handled again.
    assert {key: sorted(set(numbers)) for key, numbers in done.items()} == {k: list(range(each)) for k in KEYS}, seed
    assert kills or all(numbers == list(range(each)) for numbers in done.values())
    assert codes == [0, 0], "a worker did not end cleanly"


@pytest.mark.rest
async def test_two_worker_processes_run_events_of_a_key_one_at_a_time_in_order(postgres: Postgres) -> None:
    await assert_keys_run_in_order(postgres, kills=0, each=50)


@pytest.mark.rest
async def test_killed_worker_holds_its_keys_only_for_its_lease(postgres: Postgres) -> None:
    await assert_keys_run_in_order(postgres, kills=3, each=40)


@pytest.mark.torture
async def test_many_kills_leave_every_key_in_order(postgres: Postgres, repetitions: Repetitions) -> None:
    await assert_keys_run_in_order(postgres, kills=repetitions(14, 60), each=repetitions(300, 1000))
