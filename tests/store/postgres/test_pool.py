"""The connection pool of PostgreSQL: errors at the start, partitions, and retries."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import free_port, run_sql
from tests.support.stores import postgres_of

pytestmark = pytest.mark.anyio


async def test_unreachable_server_raises_unavailable_without_the_user() -> None:
    store = make_store(Settings(database=f"postgresql://secret-user@127.0.0.1:{free_port()}/x"))
    with pytest.raises(StoreUnavailable) as failure:
        await store.open()
    assert "secret-user" not in str(failure.value)


async def test_invalid_url_is_a_configuration_error_without_the_password() -> None:
    store = make_store(Settings(database="postgresql://user:hunter2@host:port/x"))
    with pytest.raises(ConfigurationError) as failure:
        await store.open()
    assert "hunter2" not in str(failure.value)


PARTITIONS = (
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass ORDER BY 1"
)


def expected_partitions(database: str) -> list[str]:
    ((today,),) = run_sql(database, "SELECT (now() AT TIME ZONE 'UTC')::date")
    return [f"webhook_payloads_{today + timedelta(days=n):%Y%m%d}" for n in range(-1, 8)]


async def test_partitions_exist_for_every_day_of_the_coming_week(store: Store, database: str) -> None:
    assert [name for (name,) in run_sql(database, PARTITIONS)] == expected_partitions(database)


@pytest.mark.parametrize("how", ["DROP TABLE {}", "ALTER TABLE webhook_payloads DETACH PARTITION {}"])
async def test_claim_creates_a_missing_partition(store: Store, database: str, how: str) -> None:
    await store.claims.insert([make_claim("before")])
    for name in expected_partitions(database)[:3]:
        run_sql(database, how.format(name))
    outcomes = await asyncio.gather(
        *(store.claims.insert([make_claim("evt_1"), make_claim(f"evt_{n}")]) for n in range(2, 6))
    )
    assert sorted(claimed.fresh for claimed, _ in outcomes) == [False, False, False, True]
    assert [name for (name,) in run_sql(database, PARTITIONS)] == expected_partitions(database)
    assert run_sql(database, "SELECT count(*) FROM webhook_receipts") == [(6,)]
    payload = await store.receipts.payload(outcomes[0][1].receipt)
    assert payload is not None and payload.body == make_claim("evt_2").body


async def test_start_creates_missing_partitions(store: Store, database: str) -> None:
    for name in expected_partitions(database):
        run_sql(database, f"DROP TABLE {name}")
    again = make_store(Settings(database=database, migrate="never"))
    await again.open()
    assert [name for (name,) in run_sql(database, PARTITIONS)] == expected_partitions(database)
    await again.close()


async def test_open_reader_does_not_block_the_creation_of_a_partition(store: Store, database: str) -> None:
    await store.claims.insert([make_claim("before")])
    run_sql(database, f"DROP TABLE {expected_partitions(database)[3]}")
    reader = await asyncpg.connect(database)
    async with reader.transaction():
        await reader.fetch("SELECT * FROM webhook_receipts, webhook_payloads")
        await asyncio.wait_for(postgres_of(store).pool.create_partitions(), 30)
        await asyncio.wait_for(store.claims.insert([make_claim("after")]), 30)
    await reader.close()


async def test_concurrent_claims_share_a_single_free_connection(store: Store, database: str) -> None:
    pool = postgres_of(store).pool.check_open()
    held = [await pool.acquire() for _ in range(pool.get_max_size() - 1)]
    claims = [store.claims.insert([make_claim(f"evt_{n}"), make_claim("evt_0")]) for n in range(1, 20)]
    outcomes = await asyncio.wait_for(asyncio.gather(*claims), 30)
    assert all(first.fresh for first, _ in outcomes)
    for connection in held:
        await pool.release(connection)
