"""The settings revision, and managed sources and tenants, on every store."""

import asyncio

import pytest

from oncehook.config.keyring import read_keys
from oncehook.model.errors import ConfigurationError
from oncehook.model.rows import ManagedSource
from oncehook.store.directory import next_revision
from oncehook.store.executor import Run
from oncehook.store.rows import DirectoryChange
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.managed import KEY, OTHER_KEY
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio


async def increment(store: Store) -> int:
    return await store.database.executor.transaction(next_revision)


async def test_revision_starts_at_zero_and_grows_with_each_change(database: str) -> None:
    async with open_store(database) as store, open_store(database) as other:
        assert await store.directory.revision() == 0
        assert [await increment(store), await increment(other)] == [1, 2]
        assert await store.directory.revision() == await other.directory.revision() == 2


async def test_change_that_is_rolled_back_leaves_the_revision(database: str) -> None:
    async def fail(run: Run) -> None:
        await next_revision(run)
        raise ValueError("the change fails")

    async with open_store(database) as store:
        with pytest.raises(ValueError, match="the change fails"):
            await store.database.executor.transaction(fail)
        assert await store.directory.revision() == 0


async def test_concurrent_changes_get_different_revisions(database: str) -> None:
    async with open_store(database) as store, open_store(database) as other:
        numbers = await asyncio.gather(*(increment(each) for each in (store, other) * 10))
        assert sorted(numbers) == list(range(1, 21))


def sealed(key: str) -> str:
    return read_keys([key]).seal("secret", "context")


def added(secrets: str = "sealed", **changes: object) -> DirectoryChange:
    return DirectoryChange(**{"secrets": secrets, "action": "add", "detail": {"a": 1}, "settings": "{}", **changes})  # type: ignore[arg-type]


async def test_source_is_written_with_its_revision_and_the_actor(database: str, rows: Rows) -> None:
    async with open_store(database) as store:
        assert await store.directory.sources() == []
        assert await store.directory.change_source("acme", "jane", lambda row: added(settings='{"provider": "x"}')) == 1
        (source,) = await store.directory.sources()
        assert (source.name, source.settings, source.secrets) == ("acme", '{"provider": "x"}', "sealed")
        assert source.revision == 1 and source.actor == "jane" and source.removed_at is None
        assert await store.directory.sources(after=1) == []
    assert rows("SELECT actor, action, detail FROM webhook_audit") == [("jane", "add", '{"a": 1}')]


async def test_removed_source_keeps_its_row_and_can_be_added_again(database: str) -> None:
    async with open_store(database) as store:
        await store.directory.change_source("acme", "jane", lambda row: added())
        await store.directory.change_source("acme", "joe", lambda row: added("", is_removed=True))
        (removed,) = await store.directory.sources(after=1)
        assert removed.removed_at is not None and (removed.secrets, removed.actor) == ("", "joe")
        await store.directory.change_source("acme", "jane", lambda row: added())
        (again,) = await store.directory.sources()
        assert again.removed_at is None and again.created_at >= removed.removed_at and again.revision == 3


async def test_change_that_raises_leaves_nothing(database: str, rows: Rows) -> None:
    def refuse(row: ManagedSource | None) -> DirectoryChange:
        raise ConfigurationError("no")

    async with open_store(database) as store:
        with pytest.raises(ConfigurationError):
            await store.directory.change_source("acme", "jane", refuse)
        assert await store.directory.sources() == [] and await store.directory.revision() == 0
    assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]


async def test_tenants_are_listed_by_name_in_pages(database: str) -> None:
    names = ["a", "b", "ba", "b%", "c"]
    async with open_store(database) as store:
        for source, tenants in (("stripe", names), ("github", ["b", "x"])):
            for tenant in tenants:
                await store.directory.change_tenant(source, tenant, "jane", lambda row: added())
        await store.directory.change_tenant("stripe", "a", "jane", lambda row: added("", is_removed=True))

        async def listed(**options: object) -> list[str]:
            page = await store.directory.tenants("stripe", **{"limit": 10, **options})  # type: ignore[arg-type]
            return [row.tenant for row in page]

        assert await listed() == ["b", "b%", "ba", "c"]
        assert await listed(limit=2) == ["b", "b%"]
        assert await listed(limit=2, after="b%") == ["ba", "c"]
        assert await listed(search="b") == ["b", "b%", "ba"]
        assert await listed(search="b%") == ["b%"]
        assert await listed(search="b", after="b%") == ["ba"]


async def test_changed_tenants_are_those_after_a_revision(database: str) -> None:
    async with open_store(database) as store:
        for tenant in ("a", "b", "a"):
            await store.directory.change_tenant("stripe", tenant, "jane", lambda row: added())
        changed = [(row.tenant, row.revision) for row in await store.directory.changed_tenants(0, 10)]
        assert changed == [("b", 2), ("a", 3)]
        assert [row.tenant for row in await store.directory.changed_tenants(2, 10)] == ["a"]
        assert [row.tenant for row in await store.directory.changed_tenants(0, 1)] == ["b"]
        stored = await store.directory.tenant("stripe", "a")
        assert stored is not None and stored.revision == 3
        assert await store.directory.tenant("github", "a") is None


async def test_keys_of_all_sealed_rows_are_found(database: str) -> None:
    async with open_store(database) as store:
        await store.directory.change_source("acme", "jane", lambda row: added(sealed(KEY)))
        await store.directory.change_tenant("stripe", "a", "jane", lambda row: added(sealed(OTHER_KEY)))
        await store.directory.change_tenant("stripe", "b", "jane", lambda row: added("", is_removed=True))
        assert await store.directory.sealing_keys() == {"test", "other"}
