"""Opening all shards for one operation: one that is down is left out, and a wrong one is an error."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.configuration import Configuration
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.store.federation import FederatedStore
from oncehook.store.opening import opened_shards
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, shard_databases, stripe_sources

pytestmark = pytest.mark.anyio


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a", "b") as made:
        yield made


async def started(databases: ShardDatabases) -> Configuration:
    """Let the databases become shards."""
    configuration = databases.configuration(sources=stripe_sources("one"), a='sources = ["one"]')
    async with Inbox(config=configuration, worker=False).lifespan():
        return configuration


async def test_shard_that_is_down_is_left_out_and_main_is_required(databases: ShardDatabases) -> None:
    configuration = await started(databases)
    down = databases.addresses["a"].rpartition("/")[2]
    run_sql(databases.addresses["main"], f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
    async with opened_shards(configuration.settings, configuration.shards) as store:
        assert isinstance(store, FederatedStore)
        assert list(store.missing) == ["a"] and "cannot be reached" in store.missing["a"]
        assert await store.receipts.sources() == []
    down = databases.addresses["main"].rpartition("/")[2]
    run_sql(databases.addresses["b"], f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
    with pytest.raises(StoreUnavailable):
        async with opened_shards(configuration.settings, configuration.shards):
            pass


async def test_exchanged_databases_are_an_error(databases: ShardDatabases) -> None:
    await started(databases)
    addresses = databases.addresses
    addresses["a"], addresses["b"] = addresses["b"], addresses["a"]
    configuration = databases.configuration(sources=stripe_sources("one"), a='sources = ["one"]')
    with pytest.raises(ConfigurationError, match="is the shard"):
        async with opened_shards(configuration.settings, configuration.shards):
            pass


async def test_without_shards_the_store_is_that_of_main(databases: ShardDatabases) -> None:
    configuration = databases.configuration(sources=stripe_sources("one"))
    async with opened_shards(configuration.settings, {}) as store:
        assert not isinstance(store, FederatedStore)
