"""Leases on every store."""

import pytest

from oncehook import Inbox
from tests.support.servers import ask
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_released_receipt_is_due_later_and_uses_no_attempt(inbox: Inbox, database: str) -> None:
    await claim(inbox, "evt_1", "evt_2")
    later, now = await inbox._runtime.store.leases.take(2, 30, "test")
    assert await inbox._runtime.store.leases.release([later.held], 60.0) == 1
    assert await inbox._runtime.store.leases.release([now.held]) == 1
    assert await inbox._runtime.store.leases.release([later.held], 0.0) == 0, "a lease can be released only once"
    (again,) = await inbox._runtime.store.leases.take(2, 30, "test")
    assert (again.receipt, again.attempt) == (now.receipt, 1)
    assert ask(database, "SELECT attempts, status FROM webhook_receipts ORDER BY id") == [
        (0, "received"),
        (1, "processing"),
    ]
