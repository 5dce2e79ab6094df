"""Retention on SQLite: erased content is overwritten, and the file shrinks."""

from pathlib import Path

import pytest

from oncehook.config.settings import Horizon
from oncehook.operations.prune import prune
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import open_store
from tests.support.work import claim

pytestmark = pytest.mark.anyio

MONTH = 30 * 86400.0


async def test_prune_shrinks_the_file(tmp_path: Path, database: str) -> None:
    file = tmp_path / "inbox.db"
    async with open_store(database) as store:
        for start in range(0, 200, 50):
            await store.claims.insert([make_claim(f"evt_{n}", body=b"x" * 50_000) for n in range(start, start + 50)])
    before = file.stat().st_size  # the write-ahead log is empty after a close
    run_sql(database, "UPDATE webhook_receipts SET status = 'processed', received_at = '2020-01-01T00:00:00.000000Z'")
    async with open_store(database) as store:
        assert await prune(store, [Horizon("stripe", MONTH, MONTH)]) is not None
        after = file.stat().st_size
    assert before > 10_000_000
    assert after < before / 4, "the pages of deleted payloads must be returned to the file system"


async def test_free_space_frees_nothing_in_a_small_file(store: Store) -> None:
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        assert await pruning.free_space() is False


async def test_no_day_is_dropped_without_partitions(store: Store) -> None:
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        await pruning.create_days()
        assert await pruning.drop_days({}) == []


async def test_erased_body_is_overwritten_in_the_file_and_its_log(store: Store, tmp_path: Path) -> None:
    receipts = await claim(store, "evt_1", body=b"secret-of-jane" * 100)
    assert await store.retention.erase(receipts, None, "jane", "{}") == 1
    for file in tmp_path.glob("inbox.db*"):
        assert b"secret-of-jane" not in file.read_bytes(), f"{file.name} must not contain the erased body"
