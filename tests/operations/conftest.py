"""Fixtures of the tests of operations."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from tests.support.events import Rows


@pytest.fixture
async def ledger_inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """An inbox without a worker, and a table that handlers write to."""
    inbox = make_inbox(worker=False, version="v2")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
        yield inbox
