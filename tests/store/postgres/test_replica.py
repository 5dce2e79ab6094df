"""The connections to a standby: positions, errors, and addresses that cannot work."""

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store import make_standby
from oncehook.store.postgres.replica import PostgresStandby
from tests.support.proxy import proxied
from tests.support.servers import Postgres, free_port
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


async def test_position_of_the_primary_names_the_database(postgres: Postgres) -> None:
    database, other = postgres.database(migrated=True), postgres.database(migrated=True)
    standby = PostgresStandby(database, 5.0)
    async with open_store(database) as store, open_store(other) as second:
        first = await standby.primary_position(store.database.executor)
        again = await standby.primary_position(store.database.executor)
        elsewhere = await standby.primary_position(second.database.executor)
    assert first.database == again.database != elsewhere.database
    assert again.position >= first.position > 0 and not first.is_standby


async def test_read_ends_with_its_statement(postgres: Postgres) -> None:
    """A statement after it, such as a reset of the session, could fail with a standby that goes away."""
    async with proxied(postgres.database(migrated=True)) as (proxy, address):
        standby = PostgresStandby(address, 5.0)
        await standby.open()
        proxy.lose_request(b"RESET ALL")
        for _ in range(2):
            assert (await standby.position()).position >= 0
        await standby.close()


async def test_standby_that_is_down_is_unavailable_and_opens_later() -> None:
    standby = PostgresStandby(f"postgresql://127.0.0.1:{free_port()}/nowhere", 1.0)
    with pytest.raises(StoreUnavailable, match="not open"):
        await standby.position()
    await standby.open()
    with pytest.raises(StoreUnavailable):
        await standby.position()
    await standby.close()


async def test_wrong_addresses_are_configuration_errors() -> None:
    with pytest.raises(ConfigurationError, match="read_database is not a PostgreSQL URL"):
        await PostgresStandby("postgresql://host:port/name", 1.0).open()
    for database, read in (("sqlite:///a.db", "postgresql://h/d"), ("postgresql://h/d", "sqlite:///a.db")):
        with pytest.raises(ConfigurationError, match="read_database needs PostgreSQL"):
            make_standby(Settings(database=database, read_database=read))
