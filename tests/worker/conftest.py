"""Fixtures for the tests of the worker."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from tests.support.events import Rows


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with a lease of 1.5 seconds, and a table that handlers write to."""
    inbox = make_inbox(worker=False, lease="1.5s")
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")
        yield inbox
