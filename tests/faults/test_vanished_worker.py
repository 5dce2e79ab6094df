"""A worker's host vanishes: its database sessions and their row locks are ended."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.store.postgres.session import IDLE, session_limits, session_name
from tests.support.events import make_claim
from tests.support.proxy import proxied
from tests.support.servers import PgBouncer, Postgres, private_pgbouncer, run_sql
from tests.support.worker_process import WorkerProcess, until_count

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("pgbouncer")]

OPEN = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' "
    "AND application_name LIKE 'oncehook %:%'"
)
STATES = "SELECT status, attempts, last_error FROM webhook_receipts ORDER BY event_id"


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["direct", "pooled"])
async def test_events_of_a_vanished_worker_are_processed_despite_its_locks(
    make_inbox: Callable[..., Inbox], postgres: Postgres, database: str, way: str
) -> None:
    """The events write the same rows, and have few and short attempts."""
    inbox = make_inbox(worker=False, lease="1s")
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*", retry=Retry(attempts=3, first=0.1, most=0.2), timeout=2.0)
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", event.id)

    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT PRIMARY KEY, twice TEXT)")
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
        if way == "direct":
            await _lose_worker(database, database, inbox)
        else:
            with private_pgbouncer(postgres) as bouncer:
                await _lose_worker(database, PgBouncer.url(bouncer, database), inbox)
        assert run_sql(database, "SELECT count(*) FROM ledger") == [(3,)]
    assert {(status, attempts) for status, attempts, _ in run_sql(database, STATES)} <= {
        ("processed", 2),
        ("processed", 3),
    }


async def _lose_worker(database: str, address: str, inbox: Inbox) -> None:
    """Let another worker vanish in the middle of its handlers, and this one finish its events."""
    async with proxied(address) as (proxy, through):
        lost = await asyncio.to_thread(WorkerProcess, through, "60")
        await until_count(database, OPEN, lambda count: count == 3)
        proxy.vanish()
        await asyncio.to_thread(lost.end)
        assert run_sql(database, OPEN) == [(3,)]
        inbox._runtime.start_worker()
        done = "SELECT count(*) FROM webhook_receipts WHERE status IN ('processed', 'failed')"
        await until_count(database, done, lambda count: count == 3)


async def test_sessions_of_a_worker_with_a_live_lease_are_not_ended(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT PRIMARY KEY, twice TEXT)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        worker = await asyncio.to_thread(WorkerProcess, database, "60")
        try:
            idle = OPEN + " AND state_change < now() - interval '1.5 seconds'"
            await until_count(database, idle, lambda count: count == 1)
            name = run_sql(database, "SELECT worker FROM webhook_receipts")[0][0]
            assert await inbox._runtime.store.leases.end_sessions(name) == 0
            assert run_sql(database, OPEN) == [(1,)]
            worker.send(signal.SIGSTOP)  # else its next heartbeat may end the attempt first
            run_sql(
                database, "UPDATE webhook_receipts SET lease_until = now() - interval '1 second', lease = lease + 1"
            )
            assert await inbox._runtime.store.leases.end_sessions(name) == 1
        finally:
            await asyncio.to_thread(worker.end)


async def test_server_ends_an_idle_transaction_after_its_limit(make_inbox: Callable[..., Inbox], database: str) -> None:
    """The limit is above the timeout of every handler. A limit in the database address has priority."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    found: list[Any] = []

    @inbox.on("stripe", "*", timeout=7.0)
    async def read(event: Event, tx: Any) -> None:
        found.append(await tx.fetchval(f"SELECT setting::int FROM pg_settings WHERE name = '{IDLE}'"))
        found.append(await tx.fetchval("SHOW tcp_keepalives_idle"))

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        inbox._runtime.start_worker()
        await until_count(
            database, "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'", lambda n: n == 1
        )
    assert found == [17_000, "30"]


def test_limits_in_the_database_address_have_priority() -> None:
    limits = session_limits(f"postgresql://host/name?{IDLE}=60s&options=-c%20tcp_user_timeout%3D5", 30.0, 300.0)
    assert sorted(limits) == ["tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval"]


def test_long_worker_names_get_distinct_session_names() -> None:
    names = {session_name(f"{'h' * 60}:{pid}") for pid in range(100)} | {session_name("host:1"), session_name("hôte:1")}
    assert len(names) == 102 and all(name.isascii() and len(name) < 64 for name in names)
