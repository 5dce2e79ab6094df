"""Work that every process does: two processes that do it at the same time do it once, on both databases.

The tasks that have a leader are in `tests/store/test_leadership.py` and `tests/system/test_alert_processes.py`.
"""

import asyncio

import pytest

from oncehook.handlers.registry import Handlers
from oncehook.model.delivery import Rejection
from oncehook.store.rows import MAX_REJECTIONS
from oncehook.store.store import Store
from oncehook.worker.rescue import abandon, rescue
from tests.support.events import Rows
from tests.support.stores import claim_and_lease, open_store, postgres_of

pytestmark = pytest.mark.anyio

SAMPLE = Rejection(
    source="stripe",
    tenant="",
    reason="bad_signature",
    detail="no secret matched",
    method="POST",
    query="",
    headers="{}",
    body=b"{}",
    size=2,
)
PARTITIONS = (
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass ORDER BY 1"
)


async def test_two_processes_rescue_an_expired_receipt_once(database: str, store: Store, rows: Rows) -> None:
    assert len(await claim_and_lease(store, 20)) == 20
    await store.schema.move_times_back(3600)
    async with open_store(database) as other:
        rescued = await asyncio.gather(*(rescue(each, Handlers(), {}) for each in (store, other)))
        await asyncio.gather(abandon(store), abandon(other))
    assert sum(rescued) == 20
    assert rows("SELECT DISTINCT status, attempts FROM webhook_receipts") == [("retrying", 1)]


async def test_samples_of_two_processes_stay_within_the_limit(database: str, store: Store, rows: Rows) -> None:
    async with open_store(database) as other:
        for _ in range(MAX_REJECTIONS):
            await asyncio.gather(store.rejections.keep(SAMPLE), other.rejections.keep(SAMPLE))
    assert rows("SELECT count(*) FROM webhook_rejections")[0][0] <= MAX_REJECTIONS + 1


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_two_processes_create_the_partitions_of_the_coming_days_once(
    database: str, store: Store, rows: Rows
) -> None:
    before = rows(PARTITIONS)
    for (name,) in before:
        rows(f"DROP TABLE {name}")
    async with open_store(database, migrate="never") as other:
        await asyncio.gather(*(postgres_of(each).pool.create_partitions() for each in (store, other)))
    assert rows(PARTITIONS) == before
