"""The settings revision on every store."""

import asyncio

import pytest

from oncehook.store.directory import next_revision
from oncehook.store.executor import Run
from oncehook.store.store import Store
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
