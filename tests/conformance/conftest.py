"""A store of each kind, opened on an empty database."""

from collections.abc import AsyncIterator

import pytest

from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.store import Store


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=database))
    await store.open()
    yield store
    await store.close()
