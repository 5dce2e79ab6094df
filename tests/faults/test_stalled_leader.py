"""A leader that is stopped (SIGSTOP) loses its task to another process, and cannot act when it continues."""

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from oncehook import StoreUnavailable
from oncehook.operations.prune import cutoffs
from oncehook.store.leadership import LeadershipLost
from oncehook.store.postgres.retention import PostgresPruning
from oncehook.store.store import Store
from tests.support.ages import set_age
from tests.support.retention import KEEP_30
from tests.support.servers import Postgres, run_sql
from tests.support.stores import open_store
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

LEADER = """
import asyncio, sys
from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.leadership import hold
from oncehook.store.postgres.executor import run_on

async def main(database, where):
    store = make_store(Settings(database=database))
    await store.open()
    leadership = await store.leadership.take("task", 0.2)

    async def stall():
        print("stalls", flush=True)
        sys.stdin.readline()

    async with store.database.pool.connection() as connection:
        if where == "before":
            await stall()
        async with connection.transaction():
            await hold(run_on(connection), leadership, 0.2)
            if where == "inside":
                await stall()
            await connection.prepare("SELECT 1")  # its parts are sent one after the other
            if where == "statement":
                await stall()
            await run_on(connection)("audit", {"actor": "leader", "action": "write", "detail": "{}"})

try:
    asyncio.run(main(*sys.argv[1:]))
except Exception as error:
    print(type(error).__name__, flush=True)
"""
WRITES = "SELECT count(*) FROM webhook_audit WHERE actor = 'leader'"


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


def start_leader(database: str, where: str) -> "subprocess.Popen[str]":
    """A leader that stalls before its transaction, inside it, or between the parts of a statement in it."""
    command = [sys.executable, "-c", LEADER, database, where]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert leader.stdout is not None and leader.stdout.readline() == "stalls\n"
    return leader


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("before", "LeadershipLost"),
        pytest.param("inside", "StoreUnavailable", marks=pytest.mark.torture),
        pytest.param("statement", "StoreUnavailable", marks=pytest.mark.torture),
    ],
)
async def test_stopped_leader_is_replaced_and_writes_nothing_when_it_continues(
    database: str, where: str, error: str
) -> None:
    leader = await asyncio.to_thread(start_leader, database, where)
    try:
        leader.send_signal(signal.SIGSTOP)
        async with open_store(database) as store:
            await until_taken(store)
            leader.send_signal(signal.SIGCONT)
            output, _ = await asyncio.to_thread(leader.communicate, "\n")
            assert output == f"{error}\n"
            assert run_sql(database, WRITES) == [(0,)]
    finally:
        leader.kill()
        leader.communicate()


async def until_taken(store: Store) -> None:
    """Wait until this process has become the leader. Errors of a busy row are retried."""

    async def take() -> bool:
        try:
            return await store.leadership.take("task", 60.0) is not None
        except StoreUnavailable:
            return False

    await eventually(take, "another process becomes the leader", within=20)


async def test_former_leader_does_not_drop_a_day_that_its_successor_attached_again(database: str) -> None:
    """The former leader stalls after it has detached a day. Then a replay begins to need one of its payloads."""
    async with open_store(database) as store, open_store(database) as other:
        await claim(store, "evt_1")
        set_age(database, "evt_1", 40, "processed")
        _, payloads = cutoffs(KEEP_30, await store.operations.now())
        async with store.retention.start_pruning() as stalled:
            assert isinstance(stalled, PostgresPruning)
            day = await detach(stalled, payloads)
            run_sql(database, "UPDATE webhook_receipts SET status = 'received'")
            run_sql(database, "UPDATE webhook_leaders SET expires_at = taken_at")
            async with other.retention.start_pruning() as successor:
                assert successor is not None and await successor.drop_days(payloads) == []
            run_sql(database, "UPDATE webhook_receipts SET status = 'processed'")  # it ran, and could be replayed again
            with pytest.raises(LeadershipLost):
                await stalled._finish(day, payloads)
        assert run_sql(database, "SELECT count(*) FROM webhook_payloads") == [(1,)]


async def detach(pruning: PostgresPruning, payloads: Any) -> Any:
    """Detach the oldest day, and return its row."""
    days = await pruning._connection.fetch(pruning._pool.sql["payload_days"])
    for step in ("flag_day", "detach_day"):
        await pruning._run_step(step, days[0])
    return days[0]
