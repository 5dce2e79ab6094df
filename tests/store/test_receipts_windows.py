"""Windows over receipts, which bound the work of a search."""

from datetime import timedelta

import pytest

from oncehook.model.receipt import Filter
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_windows_cover_every_receipt_once(store: Store) -> None:
    ids = sorted(await claim(store, *(f"evt_{n}" for n in range(25))), reverse=True)
    met, before = [], None
    for _ in range(9):
        end = await store.receipts.window_end(Filter(), before=before, size=10)
        met += [r.receipt for r in await store.receipts.find(Filter(), limit=100, before=before, down_to=end)]
        before = end
        if end is None:
            break
    assert met == ids


async def test_window_end_uses_only_the_times_of_the_filter(store: Store, rows: Rows) -> None:
    await claim(store, *(f"evt_{n}" for n in range(5)))
    now = await store.operations.now()
    assert await store.receipts.window_end(Filter(since=now - timedelta(hours=1)), before=None, size=5) is not None
    assert await store.receipts.window_end(Filter(until=now - timedelta(hours=1)), before=None, size=1) is None
    assert await store.receipts.window_end(Filter(source="unknown"), before=None, size=5) is not None
