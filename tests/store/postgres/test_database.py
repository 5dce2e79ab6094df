"""What only PostgreSQL has: durability that can be off, partitions, plans, and connections that can be lost."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, RowRefused, StoreUnavailable
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import Postgres, ask, free_port, private_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


# -- durability -----------------------------------------------------------------------------------------------------


async def test_it_does_not_start_where_commits_are_not_synchronous(postgres: Postgres) -> None:
    address = postgres.database()
    ask(address, f"ALTER DATABASE {address.rpartition('/')[2]} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError, match=r"synchronous_commit = off.*unsafe_durability"):
        await make_store(Settings(database=address)).open()
    assert ask(address, "SELECT count(*) FROM pg_class WHERE relname LIKE 'webhook_%'") == [(0,)]
    unsafe = make_store(Settings(database=address, unsafe_durability=True))
    await unsafe.open()
    assert (await unsafe.claims.insert([make_claim()]))[0].fresh
    await unsafe.close()


async def test_it_does_not_start_where_nothing_is_synced() -> None:
    with private_postgres(fsync="off") as cluster:
        address = cluster.database()
        with pytest.raises(ConfigurationError, match=r"fsync = off.*unsafe_durability"):
            await make_store(Settings(database=address)).open()
        unsafe = make_store(Settings(database=address, unsafe_durability=True))
        await unsafe.open()
        await unsafe.close()


async def test_it_does_not_start_where_commits_do_not_wait_for_the_named_standby(address: str) -> None:
    with private_postgres(synchronous_standby_names="s1") as cluster:
        named = cluster.url("postgres")
        for value in ("local", "remote_write"):
            unsafe = make_store(Settings(database=f"{named}?synchronous_commit={value}", migrate="never"))
            with pytest.raises(ConfigurationError, match=f"synchronous_commit = {value}.*unsafe_durability"):
                await unsafe.open()
    alone = make_store(Settings(database=f"{address}?synchronous_commit=local"))  # no standby: it means the same as on
    await alone.open()
    await alone.close()


async def test_torn_pages_are_a_risk_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with private_postgres(full_page_writes="off") as cluster:
        store = make_store(Settings(database=cluster.database()))
        with caplog.at_level(logging.WARNING, "oncehook"):
            await store.open()
        assert [vars(record).get("event") for record in caplog.records] == ["durability_risk"]
        assert "full_page_writes = off" in (await store.risks())[0]
        await store.close()


async def test_a_claim_is_durable_though_commits_become_asynchronous_while_it_runs() -> None:
    """The WAL writer sleeps, so what is committed asynchronously is only in memory when the server is killed."""
    with private_postgres(wal_writer_delay="10s") as cluster:
        address = cluster.database()
        store = make_store(Settings(database=address))
        await store.open()
        await store.claims.insert([make_claim("warm")])
        await store.ping()
        cluster.sql("ALTER SYSTEM SET synchronous_commit = off")
        cluster.sql("SELECT pg_reload_conf()")
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable, match="synchronous_commit = off"):
                while True:
                    await store.ping()
        assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh
        cluster.stop(kill=True)
        await store.close()
        cluster.start()
        assert ask(address, "SELECT event_id FROM webhook_receipts ORDER BY id") == [("warm",), ("evt_1",)]


async def test_a_refused_start_leaves_no_connection_behind(address: str) -> None:
    name = address.rpartition("/")[2]
    ask(address, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError):
        await make_store(Settings(database=address)).open()
    others = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'oncehook'"
    assert ask(address, others) == [(0,)]


# -- receipt ids ----------------------------------------------------------------------------------------------------


async def test_ids_that_another_process_has_used_are_drawn_again(store: Store, address: str) -> None:
    """After a failover or a restored backup the sequence is behind the blocks that running processes hold."""
    other = make_store(Settings(database=address, claim_timeout=2.0))
    await other.open()
    await store.claims.insert([make_claim("warm")])
    ask(address, "SELECT setval('webhook_receipt_ids', 1)")
    mine = await store.claims.insert([make_claim(f"a_{n}") for n in range(60)])
    theirs = [(await other.claims.insert([make_claim(f"b_{n}")]))[0] for n in range(5)]
    assert all(claimed.fresh for claimed in [*mine, *theirs])
    assert len({claimed.receipt for claimed in [*mine, *theirs]}) == 65
    await other.close()


# -- rows that somebody holds ---------------------------------------------------------------------------------------


async def test_a_receipt_that_somebody_holds_delays_no_other_claim_for_long(store: Store, address: str) -> None:
    """A person's open transaction, a session that hangs: its redelivery is a duplicate, and the others are claimed."""
    held, _ = await store.claims.insert([make_claim("held"), make_claim("free")])
    holder = await asyncpg.connect(address)
    async with holder.transaction():
        await holder.execute("UPDATE webhook_receipts SET correlation_id = 'x' WHERE event_id = 'held'")
        started = time.monotonic()
        outcome = await store.claims.insert([make_claim("held", body=b"other"), make_claim("free"), make_claim("new")])
        assert time.monotonic() - started < 4
    await holder.close()
    assert [claimed.fresh for claimed in outcome] == [False, False, True]
    assert (outcome[0].receipt, outcome[0].same_body) == (held.receipt, False)


# -- addresses and reach --------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = make_store(Settings(database=f"postgresql://secret-user@127.0.0.1:{free_port()}/x"))
    with pytest.raises(StoreUnavailable) as failure:
        await store.open()
    assert "secret-user" not in str(failure.value)


async def test_an_address_that_is_none_is_a_configuration_error() -> None:
    store = make_store(Settings(database="postgresql://user:hunter2@host:port/x"))
    with pytest.raises(ConfigurationError) as failure:
        await store.open()
    assert "hunter2" not in str(failure.value)


async def test_a_standby_takes_no_claim_and_says_so(store: Store, address: str) -> None:
    ask(address, f"ALTER DATABASE {address.rpartition('/')[2]} SET default_transaction_read_only = on")
    reader = make_store(Settings(database=address, migrate="never"))
    await reader.open()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await reader.claims.insert([make_claim()])
    await reader.close()


async def test_a_nul_in_an_id_is_refused(store: Store, address: str) -> None:
    with pytest.raises(RowRefused):
        await store.claims.insert([make_claim("evt_1"), make_claim("evt\x00")])
    assert ask(address, "SELECT count(*) FROM webhook_receipts") == [(0,)]


# -- partitions -----------------------------------------------------------------------------------------------------

PARTITIONS = (
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass ORDER BY 1"
)


def expected_partitions(address: str) -> list[str]:
    ((today,),) = ask(address, "SELECT (now() AT TIME ZONE 'UTC')::date")
    return [f"webhook_payloads_{today + timedelta(days=n):%Y%m%d}" for n in range(-1, 8)]


async def test_there_is_a_partition_for_every_day_of_the_coming_week(store: Store, address: str) -> None:
    assert [name for (name,) in ask(address, PARTITIONS)] == expected_partitions(address)


@pytest.mark.parametrize("how", ["DROP TABLE {}", "ALTER TABLE webhook_payloads DETACH PARTITION {}"])
async def test_a_claim_that_meets_no_partition_makes_it_and_goes_on(store: Store, address: str, how: str) -> None:
    await store.claims.insert([make_claim("before")])
    for name in expected_partitions(address)[:3]:
        ask(address, how.format(name))
    outcomes = await asyncio.gather(
        *(store.claims.insert([make_claim("evt_1"), make_claim(f"evt_{n}")]) for n in range(2, 6))
    )
    assert sorted(claimed.fresh for claimed, _ in outcomes) == [False, False, False, True]
    assert [name for (name,) in ask(address, PARTITIONS)] == expected_partitions(address)
    assert ask(address, "SELECT count(*) FROM webhook_receipts") == [(6,)]
    payload = await store.receipts.payload(outcomes[0][1].receipt)
    assert payload is not None and payload.body == make_claim("evt_2").body


async def test_an_old_schema_that_lacks_days_gets_them_at_the_next_start(store: Store, address: str) -> None:
    for name in expected_partitions(address):
        ask(address, f"DROP TABLE {name}")
    again = make_store(Settings(database=address, migrate="never"))
    await again.open()
    assert [name for (name,) in ask(address, PARTITIONS)] == expected_partitions(address)
    await again.close()


async def test_an_open_reader_does_not_hold_up_a_claim_that_makes_a_partition(store: Store, address: str) -> None:
    await store.claims.insert([make_claim("before")])
    ask(address, f"DROP TABLE {expected_partitions(address)[3]}")
    reader = await asyncpg.connect(address)
    async with reader.transaction():
        await reader.fetch("SELECT * FROM webhook_receipts, webhook_payloads")
        await asyncio.wait_for(store.database.pool.create_partitions(), 2)
        await asyncio.wait_for(store.claims.insert([make_claim("after")]), 2)
    await reader.close()


# -- plans ----------------------------------------------------------------------------------------------------------

MANY = """
INSERT INTO webhook_receipts (id, source, provider, event_id, type, object_id, status, fingerprint, received_at)
SELECT nextval('webhook_receipt_ids'), 'stripe', 'stripe', 'old_' || n, 'invoice.paid', 'in_' || n, 'received', '\\x00',
       now() - n * interval '1 second'
FROM generate_series(1, 5000) n
"""


async def plan(address: str, sql: str, *values: object) -> str:
    connection = await asyncpg.connect(address)
    try:
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}", *values))
    finally:
        await connection.close()


async def find_plan(address: str, **given: object) -> str:
    sql = queries.with_parameters(queries.load("postgres")["find_receipts"], set(given))
    text, names = queries.number_parameters(sql)
    return await plan(address, text, *(given[name] for name in names))


async def test_the_hot_queries_go_by_an_index(store: Store, address: str) -> None:
    ask(address, MANY)
    ask(address, "ANALYZE webhook_receipts")
    plans = {
        "webhook_receipts_once": await plan(
            address, store.sql["claimed_before"], ["stripe"] * 3, ["old_7", "old_8", "new"], True
        ),
        "webhook_receipts_object": await find_plan(address, object="in_7", limit=50),
        "webhook_receipts_received": await find_plan(address, limit=50),
        "webhook_receipts_pkey": await find_plan(address, receipt=7, limit=1),
    }
    plans["webhook_receipts_received "] = await find_plan(
        address, before_time=datetime.now(UTC), before_receipt=99, limit=50
    )
    lease, names = queries.number_parameters(store.sql["lease"])
    given = {"seconds": 30.0, "worker": "w", "rescued": False, "floor": "-infinity", "limit": 16}
    given |= {"handled": ["stripe %"], "projected": []}
    plans["webhook_receipts_due"] = await plan(address, lease, *(given[name] for name in names))
    for index, text in plans.items():
        assert index.strip() in text, text
        assert not re.search(r"Seq Scan on webhook_receipts", text), text


# -- one connection is enough ---------------------------------------------------------------------------------------


async def test_an_inbox_with_a_single_connection_does_not_wait_for_itself(store: Store, address: str) -> None:
    assert store.database.pool._pool is not None
    held = [await store.database.pool._pool.acquire() for _ in range(store.database.pool._pool.get_max_size() - 1)]
    claims = [store.claims.insert([make_claim(f"evt_{n}"), make_claim("evt_0")]) for n in range(1, 20)]
    outcomes = await asyncio.wait_for(asyncio.gather(*claims), 5)
    assert all(first.fresh for first, _ in outcomes)
    for connection in held:
        await store.database.pool._pool.release(connection)
