"""Leases on PostgreSQL: order and exclusion across processes, and query plans."""

import asyncio
import random
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import psycopg
import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import Leased
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.replay import replay
from oncehook.store import queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.postgres.leases import PostgresLeaseStore
from oncehook.store.postgres.session import session_name
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.stores import claims_with_key, event_ids, open_store, settle
from tests.support.waiting import eventually, next_turn
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


async def test_lease_does_not_read_the_backlog_of_a_paused_source(postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    async with open_store(database) as store:
        run_sql(
            database,
            """INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, fingerprint)
            SELECT n, CASE WHEN n % 500 = 0 THEN 'github' ELSE 'stripe' END, 'p', 'e' || n, 't',
                   now() - (60000 - n) * interval '1 second', CASE WHEN n % 500 = 0 AND n < 40000 THEN 'processed'
                   ELSE 'received' END, '\\x00' FROM generate_series(1, 50000) n""",
        )
        run_sql(database, "ANALYZE webhook_receipts")
        await store.pauses.pause("stripe", "me")
        assert len(await store.leases.take(1, 30, "test")) == 1
        text, names = queries.number_parameters(queries.statement("postgres", "lease", frozenset()))
        parameters = {"limit": 1, "rescued": False, "worker": "w", "seconds": 30.0, "floor": store.pauses.backlog.floor}  # type: ignore[attr-defined]
        parameters |= {"consumer": "main", **handled_parameters(POSTGRES, None)}
        connection = await asyncpg.connect(database)
        try:
            rows = await connection.fetch(f"EXPLAIN (ANALYZE) {text}", *(parameters[name] for name in names))
        finally:
            await connection.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using webhook_receipts_due" in plan, plan
    passed = [int(line.split(":")[1]) for line in plan.splitlines() if "Rows Removed by Filter" in line]
    assert sum(passed) < 1500, plan


async def lease(store: Store, limit: int = 10, **more: Any) -> list[Leased]:
    return await store.leases.take(limit, 30, "test", **more)


async def test_lease_skips_a_receipt_that_another_transaction_has_locked(store: Store, database: str) -> None:
    await store.claims.insert([make_claim(event_id) for event_id in ("evt_1", "evt_2", "evt_3")])
    with psycopg.connect(database) as other:
        other.execute("SELECT 1 FROM webhook_receipts WHERE event_id = 'evt_1' FOR UPDATE")
        async with asyncio.timeout(5):
            leased = await lease(store)
    assert sorted(event_ids(leased)) == ["evt_2", "evt_3"], "a worker does not wait for another one"
    assert event_ids(await lease(store)) == ["evt_1"]


async def test_key_whose_first_receipt_is_locked_is_skipped(store: Store, database: str) -> None:
    await store.claims.insert([*claims_with_key("a", 2), *claims_with_key("b", 1)])
    with psycopg.connect(database) as other:
        other.execute("SELECT 1 FROM webhook_receipts WHERE event_id = 'a-0' FOR UPDATE")
        async with asyncio.timeout(5):
            leased = await lease(store)
    assert event_ids(leased) == ["b-0"], "a worker neither waits for another one, nor overtakes the first event"
    assert event_ids(await lease(store)) == ["a-0"]


async def test_order_of_a_key_is_the_order_of_arrival_not_of_ids(postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    async with open_store(database) as early, open_store(database) as late:
        for store in (early, late):  # each draws a block of ids; those of `early` are smaller
            await store.claims.insert([make_claim(f"first of {id(store)}", status=State.IGNORED)])
        (first,) = await late.claims.insert(claims_with_key("a", 1, 0))
        (second,) = await early.claims.insert(claims_with_key("a", 1, 1))
        assert second.receipt < first.receipt
        assert event_ids(await lease(early)) == ["a-0"], "the first receipt to arrive must be leased"


async def test_concurrent_workers_never_lease_two_receipts_of_one_key(postgres: Postgres) -> None:
    """Earlier events are replayed while six workers lease, so that they see different first receipts."""
    database = postgres.database(migrated=True)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(database)) for _ in range(6)]
        await stores[0].claims.insert(claims_with_key("a", 40))
        held: set[int] = set()
        is_done = receipts_are(database, "processed", 40)

        async def work(store: Store) -> None:
            while not is_done():
                for leased in await lease(store, 4):
                    assert not held, "two receipts of one key must not be leased at once"
                    held.add(leased.receipt)
                    await next_turn()
                    held.remove(leased.receipt)
                    await settle(store, [leased])

        async def replay_processed() -> None:
            for _ in range(30):
                await replay(stores[0], Selection(Filter(status="processed"), receipts=(random.randrange(1, 40),)))

        async with asyncio.timeout(60):
            await asyncio.gather(replay_processed(), *map(work, stores))


PARAMETERS = {
    "consumer": "main",
    "source": "", "key": "", "most": 80, "keys": '[{"source": "stripe", "key": "in_1"}]', "skip_failed": [],
    "limit": 32, "rescued": False, "worker": "w", "seconds": 30.0, "floor": "-infinity",
    "handled": ["stripe %"], "projected": [],
}  # fmt: skip


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_serial_lease_uses_the_indexes_of_its_key(postgres: Postgres, is_analysed: bool) -> None:
    address = postgres.database(migrated=True)
    async with open_store(address) as store:
        await store.claims.insert(claims_with_key("in_1", 500))
        await store.claims.insert([claims_with_key(f"dead_{n}", 1, status=State.FAILED)[0] for n in range(500)])
        await store.claims.insert([make_claim(f"free_{n}") for n in range(500)])
        if is_analysed:
            run_sql(address, "ANALYZE webhook_receipts")
        connection = await asyncpg.connect(address)
        plans = {}
        for name in ("serial_keys", "lease_serial", "lease"):
            text, names = queries.number_parameters(queries.statement("postgres", name, frozenset()))
            rows = await connection.fetch(f"EXPLAIN {text}", *(PARAMETERS[name] for name in names))
            plans[name] = "\n".join(row[0] for row in rows)
        await connection.close()
    for name in ("serial_keys", "lease_serial"):
        assert "Seq Scan on webhook_receipts" not in plans[name], plans[name]
    assert "webhook_receipts_serial_waiting" in plans["serial_keys"]
    for index in ("serial_waiting", "serial_processing", "serial_failed"):
        scan = re.search(
            rf"Index (Only )?Scan using webhook_receipts_{index} .*\n +Index Cond: (.*)", plans["lease_serial"]
        )
        assert scan is not None and re.search(r"\bsource\b\S* = k.source", scan[2]) and "serial_key = k.key" in scan[2]
    assert "webhook_receipts_due" in plans["lease"] and "webhook_receipts_due" not in plans["lease_serial"]


async def test_sessions_of_a_worker_without_a_live_lease_are_ended(store: Store, database: str) -> None:
    address = f"{database}?application_name={session_name('dead worker').replace(' ', '%20')}"
    with psycopg.connect(address) as connection:
        connection.execute("SELECT 1")  # its transaction stays open
        idle = "SELECT 1 FROM pg_stat_activity WHERE pid = %d AND state_change < now() - interval '1 second'"
        await eventually(lambda: bool(run_sql(database, idle % connection.info.backend_pid)), "it is idle for a second")
        assert await store.leases.end_sessions("dead worker", 60.0) == 0, "its transaction began later than that"
        assert await store.leases.end_sessions("dead worker") == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()
    assert await store.leases.end_sessions("another worker") == 0


async def test_serial_key_that_another_worker_leases_at_the_same_moment_is_skipped(store: Store) -> None:
    async def run(name: str, parameters: Mapping[str, Any]) -> list[Any]:
        raise StoreUnavailable("PostgreSQL: duplicate key") from asyncpg.UniqueViolationError("duplicate key")

    assert isinstance(store.leases, PostgresLeaseStore)
    assert await store.leases._lease_heads(run, {}) == []


async def test_other_errors_of_a_serial_lease_are_raised(store: Store) -> None:
    async def run(name: str, parameters: Mapping[str, Any]) -> list[Any]:
        raise StoreUnavailable("PostgreSQL: gone") from asyncpg.ConnectionDoesNotExistError("gone")

    assert isinstance(store.leases, PostgresLeaseStore)
    with pytest.raises(StoreUnavailable, match="gone"):
        await store.leases._lease_heads(run, {})
