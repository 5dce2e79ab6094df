"""Opens the stores of all shards for one operation outside a running inbox."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from oncehook.config.settings import Settings
from oncehook.config.shard_settings import MAIN_SHARD, ShardSettings, check_shards, database_of
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.store import make_store
from oncehook.store.federation import FederatedStore
from oncehook.store.routes import Routes
from oncehook.store.store import Store


@asynccontextmanager
async def opened_shards(settings: Settings, shards: Mapping[str, ShardSettings]) -> AsyncIterator[Store]:
    """Open all databases for the block: the store of `main`, or with shards one store over all of them.

    A shard that cannot be reached is left out: `missing` of the store has the reason.
    """
    check_shards(shards, settings.database)
    main = make_store(settings)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(main.close)
        await main.open()
        if not shards:
            yield main
            return
        stores = {MAIN_SHARD: main}
        missing: dict[str, str] = {}
        for name, shard in shards.items():
            store = stores[name] = make_store(replace(settings, database=database_of(name, shard)))
            closing.push_async_callback(store.close)
            try:
                await store.open()
            except Unavailable as error:
                missing[name] = error.detail
        routes = Routes(shards)
        federation = FederatedStore(stores, routes)
        federation.missing = missing
        for name in stores.keys() - missing.keys():
            await _check(name, stores[name])
        assert main.shards is not None
        await routes.load(main.shards)
        yield federation


async def _check(name: str, store: Store) -> None:
    """Raise ConfigurationError if a schema is out of date, or if a database is another shard."""
    if await store.schema.pending():
        raise ConfigurationError("the database schema is out of date: run `oncehook migrate`")
    assert store.shards is not None
    here = await store.shards.here()
    if here is not None and here.name != name:
        raise ConfigurationError(
            f"the database of shard {name} is the shard {here.name}: correct shards.{name}.database"
        )
