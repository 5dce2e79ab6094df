"""Claims on PostgreSQL: durability, receipt ids, and locked rows."""

import asyncio
import time

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import RowRefused, StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import Postgres, private_postgres, run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def restart_after_kill(server: Postgres) -> None:
    server.stop(kill=True)
    server.start()


async def test_claim_survives_a_kill_of_the_server() -> None:
    """All processes of PostgreSQL are killed at once. Its WAL writer writes only every ten seconds."""
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
        assert run_sql(database, "SELECT event_id FROM webhook_receipts ORDER BY id") == [("evt_0",), ("evt_1",)]


async def test_claim_is_durable_if_commits_become_asynchronous_after_the_start() -> None:
    """The WAL writer waits for ten seconds, so an asynchronous commit is only in memory when the server is killed."""
    with private_postgres(wal_writer_delay="10s") as cluster:
        database = cluster.database()
        store = make_store(Settings(database=database))
        await store.open()
        await store.claims.insert([make_claim("warm")])
        await store.ping()
        cluster.sql("ALTER SYSTEM SET synchronous_commit = off")
        cluster.sql("SELECT pg_reload_conf()")
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="synchronous_commit = off"):
                while True:
                    await store.ping()
        assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh
        cluster.stop(kill=True)
        await store.close()
        cluster.start()
        assert run_sql(database, "SELECT event_id FROM webhook_receipts ORDER BY id") == [("warm",), ("evt_1",)]


async def test_claim_draws_new_ids_if_another_process_has_used_them(store: Store, database: str) -> None:
    """After a failover or a restored backup, the sequence is behind the ids that running processes have drawn."""
    other = make_store(Settings(database=database, claim_timeout=2.0))
    await other.open()
    await store.claims.insert([make_claim("warm")])
    run_sql(database, "SELECT setval('webhook_receipt_ids', 1)")
    claimed_here = await store.claims.insert([make_claim(f"a_{n}") for n in range(60)])
    claimed_there = [(await other.claims.insert([make_claim(f"b_{n}")]))[0] for n in range(5)]
    assert all(claimed.fresh for claimed in [*claimed_here, *claimed_there])
    assert len({claimed.receipt for claimed in [*claimed_here, *claimed_there]}) == 65
    await other.close()


async def test_locked_receipt_does_not_delay_other_claims(store: Store, database: str) -> None:
    """Another session has locked a receipt. Its redelivery is a duplicate, and the other events are claimed."""
    held, _ = await store.claims.insert([make_claim("held"), make_claim("free")])
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("UPDATE webhook_receipts SET correlation_id = 'x' WHERE event_id = 'held'")
        started = time.monotonic()
        outcome = await store.claims.insert([make_claim("held", body=b"other"), make_claim("free"), make_claim("new")])
        assert time.monotonic() - started < 4
    await holder.close()
    assert [claimed.fresh for claimed in outcome] == [False, False, True]
    assert (outcome[0].receipt, outcome[0].same_body) == (held.receipt, False)


async def test_claims_of_a_batch_are_inserted_in_the_order_of_their_events(store: Store, database: str) -> None:
    """Whatever their order in the batch is: else two receivers of the same events could wait for each other."""
    columns = "(id, source, provider, event_id, type, status, fingerprint)"
    insert = f"INSERT INTO webhook_receipts {columns} VALUES ($1, 'stripe', 'stripe', $2, 't', 'received', '')"
    holder, other = [await asyncpg.connect(database) for _ in range(2)]
    held, probe = holder.transaction(), other.transaction()
    await held.start()
    await holder.execute(insert, 10**9, "a")
    batch = asyncio.create_task(store.claims.insert([make_claim("b"), make_claim("a")]))
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await eventually(lambda: bool(run_sql(database, waiting)), "the claim waits for the event `a`")
    await probe.start()
    await other.execute("SET LOCAL lock_timeout = '100ms'")
    await other.execute(insert, 10**9 + 1, "b")  # it would fail if the claim had inserted `b` already
    await probe.rollback()
    await held.rollback()
    assert [claimed.fresh for claimed in await batch] == [True, True]
    for connection in (holder, other):
        await connection.close()


async def test_claim_on_a_standby_fails_as_read_only(store: Store, database: str) -> None:
    run_sql(database, f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_read_only = on")
    reader = make_store(Settings(database=database, migrate="never", claim_timeout=0.5))
    await reader.open()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await reader.claims.insert([make_claim()])
    await reader.close()


async def test_event_id_with_nul_is_rejected(store: Store, database: str) -> None:
    with pytest.raises(RowRefused):
        await store.claims.insert([make_claim("evt_1"), make_claim("evt\x00")])
    assert run_sql(database, "SELECT count(*) FROM webhook_receipts") == [(0,)]
