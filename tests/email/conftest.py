"""Fixtures of the tests of email."""

from collections.abc import AsyncIterator

import pytest

from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.store import Store


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    """A store of each kind with eight connections, opened on an empty database."""
    store = make_store(Settings(database=database, concurrency=8))
    await store.open()
    yield store
    await store.close()
