"""Ids are imported in batches, and again after an interruption."""

from typing import Any

import pytest

from oncehook.integrations.django import import_ids
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


async def test_ids_are_imported_in_batches(inbox: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_ids, "BATCH", 3)
    events = [(f"evt_{number % 7}", "invoice.paid") for number in range(10)]
    assert await import_ids.import_event_ids(inbox, "stripe", events[:5], "imported") == 5
    assert await import_ids.import_event_ids(inbox, "stripe", events, "imported") == 2
    assert rows("SELECT count(*), min(status) FROM webhook_receipts") == [(7, "ignored")]
