"""Taking over a task on PostgreSQL: nobody waits for another process, and only the session of a stalled leader ends."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from oncehook.store.store import Store
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

HOLD = "UPDATE webhook_leaders SET expires_at = expires_at WHERE task = %s"
IDLE = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY('{%s}') AND state_change < now() - interval '5 seconds'"


async def lead_for_an_instant(store: Store, *tasks: str) -> None:
    """Become the leader of these tasks, whose terms are over."""
    for task in tasks:
        assert await store.leadership.take(task, 0.0) is not None


@contextmanager
def session(database: str, task: str | None = None) -> Iterator[psycopg.Connection]:
    """A session whose transaction is idle, as that of the leader of `task` if one is given."""
    with psycopg.connect(database) as connection:
        connection.execute(HOLD, [task]) if task else connection.execute("SELECT 1")
        yield connection
        connection.close()


async def test_task_whose_leader_works_after_its_term_is_not_taken_and_nobody_waits(
    store: Store, database: str
) -> None:
    await lead_for_an_instant(store, "task")
    with session(database, "task") as leader:
        async with asyncio.timeout(5):
            assert await store.leadership.take("task", 60.0) is None
        leader.commit()
    assert await store.leadership.take("task", 60.0) is not None


@pytest.mark.rest  # the server must have waited for the leader for five seconds
async def test_only_the_session_of_the_stalled_leader_is_ended(store: Store, database: str) -> None:
    await lead_for_an_instant(store, "task", "another task")
    assert await store.leadership.take("held task", 600.0) is not None
    with ExitStack() as stack:
        stalled, *others = [
            stack.enter_context(session(database, task)) for task in ("task", "another task", "held task", None)
        ]
        pids = ",".join(str(connection.info.backend_pid) for connection in (stalled, *others))
        await eventually(lambda: run_sql(database, IDLE % pids) == [(4,)], "all are idle for five seconds", within=20)

        async def take() -> bool:
            return await store.leadership.take("task", 60.0) is not None

        assert await store.leadership.take("held task", 60.0) is None
        await eventually(take, "the next try after the session was ended succeeds", within=10)
        for connection in others:
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            stalled.execute("SELECT 1")
