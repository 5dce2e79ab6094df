"""The store of shards: only PostgreSQL has one."""

import pytest

from oncehook.store.shards import IDS_PER_SHARD
from oncehook.store.store import Store

pytestmark = pytest.mark.anyio


async def test_only_postgres_can_be_a_shard(store: Store, database: str) -> None:
    assert (store.shards is not None) == database.startswith("postgresql")


def test_receipt_numbers_of_all_shards_are_exact_as_json_numbers() -> None:
    assert 900 * IDS_PER_SHARD < 2**53
