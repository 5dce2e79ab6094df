"""The rescue of expired leases while another session has locked receipts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from oncehook.handlers.registry import Handlers
from oncehook.store.store import Store
from oncehook.worker import rescue
from tests.support.events import Rows
from tests.support.stores import claim_and_lease

pytestmark = pytest.mark.anyio


ROW = "SELECT status, lease, attempts FROM webhook_receipts ORDER BY id"


@contextmanager
def held_row(database: str, receipt: int) -> Iterator[None]:
    """Another session has the row locked, as a hung handler's has between its last statement and COMMIT."""
    with psycopg.connect(database) as connection:
        connection.execute("SELECT 1 FROM webhook_receipts WHERE id = %s FOR UPDATE", [receipt])
        yield


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_rescue_skips_receipts_that_another_session_has_locked(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "PAGE", 1)
    both = await claim_and_lease(store, 2, seconds=0.0)
    with held_row(database, both[0].receipt):
        async with asyncio.timeout(30):
            assert await rescue.rescue(store, Handlers(), {}) == 1
    assert [row[0] for row in rows(ROW)] == ["processing", "retrying"]
