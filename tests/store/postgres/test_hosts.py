"""Several hosts in a database URL: which of them is used, and how long a dead one takes."""

import asyncio
import socket

import asyncpg
import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.postgres.hosts import NO_PRIMARY, hosts_of, split_hosts
from tests.support.events import make_claim
from tests.support.servers import Postgres, free_port, run_sql
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("address", "urls"),
    [
        ("postgresql://u:p@h/db", ["postgresql://u:p@h/db"]),
        ("postgresql:///db?host=/run/pg", ["postgresql:///db?host=/run/pg"]),
        (
            "postgresql://u:p%40@h1,h2:5433/db?sslmode=require",
            [
                "postgresql://u:p%40@h1/db?sslmode=require&target_session_attrs=read-write",
                "postgresql://u:p%40@h2:5433/db?sslmode=require&target_session_attrs=read-write",
            ],
        ),
        (
            "postgresql://u@/db?host=h1,h2&port=1,2&target_session_attrs=any",
            [
                "postgresql://u@/db?host=h1&port=1&target_session_attrs=any",
                "postgresql://u@/db?host=h2&port=2&target_session_attrs=any",
            ],
        ),
        (
            "postgresql://h1,h2/db?port=6000",
            [
                "postgresql://h1/db?port=6000&target_session_attrs=read-write",
                "postgresql://h2/db?port=6000&target_session_attrs=read-write",
            ],
        ),
    ],
)
def test_url_is_split_into_one_per_host(address: str, urls: list[str]) -> None:
    assert split_hosts(address) == urls


def with_hosts(database: str, *ports: int) -> str:
    login, _, rest = database.partition("@")
    return f"{login}@{','.join(f'127.0.0.1:{port}' for port in ports)}/{rest.partition('/')[2]}"


async def test_host_that_rejects_connections_is_skipped(database: str, postgres: Postgres) -> None:
    async with open_store(with_hosts(database, free_port(), postgres.port)) as store:
        (claimed,) = await store.claims.insert([make_claim()])
        assert claimed.fresh
        transaction = store.transaction()
        await transaction.connection()
        await transaction.rollback()


async def test_host_that_answers_nothing_uses_only_its_share_of_the_timeout(database: str, postgres: Postgres) -> None:
    """As a host without power: it accepts no connection and rejects none."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = with_hosts(database, silent.getsockname()[1], postgres.port)
        async with asyncio.timeout(10), open_store(address, claim_timeout=1.0) as store:
            assert hosts_of(address)._last == 1, "the host that worked must be tried first"
            await store.claims.insert([make_claim()])


async def test_all_hosts_down_is_unavailable(database: str) -> None:
    with pytest.raises(StoreUnavailable):
        async with open_store(with_hosts(database, free_port(), free_port())):
            pass


async def test_error_of_a_server_that_answered_is_raised(database: str, postgres: Postgres) -> None:
    missing = with_hosts(database, postgres.port, free_port()) + "_missing"
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await hosts_of(missing).connect(seconds=5)


async def test_database_that_was_made_read_only_is_unavailable_until_it_is_writable(
    database: str, postgres: Postgres
) -> None:
    """Existing connections get SQLSTATE 25006, and new ones find no host that accepts writes."""
    name = database.rpartition("/")[2]
    async with open_store(with_hosts(database, postgres.port, free_port()), claim_timeout=0.5) as store:
        await store.claims.insert([make_claim("before")])
        run_sql(postgres.url("postgres"), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        async with store.database.pool.connection() as connection:  # type: ignore[attr-defined]
            await connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(StoreUnavailable, match=NO_PRIMARY):
            await store.claims.insert([make_claim("during")])
        run_sql(postgres.url("postgres"), f"ALTER DATABASE {name} RESET default_transaction_read_only")
        (claimed,) = await store.claims.insert([make_claim("during")])
        assert claimed.fresh
