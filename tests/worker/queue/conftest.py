"""Fixtures of tests with a queue of workers. Each test that asks for one gets its own queue."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.config.options import SourceOptions
from tests.support.aws import Moto
from tests.support.events import Rows
from tests.support.work_queue import LEASE, MakeInbox, WorkQueue, never_query


@pytest.fixture
def queue(aws: Moto) -> WorkQueue:
    """A standard queue without a dead-letter queue."""
    return WorkQueue(aws)


@pytest.fixture
def dead_queue(aws: Moto) -> WorkQueue:
    """A standard queue that gives up a message after two receives."""
    return WorkQueue(aws, max_receives=2)


@pytest.fixture
def fifo(aws: Moto) -> WorkQueue:
    return WorkQueue(aws, ".fifo")


@pytest.fixture
def make(make_inbox: Callable[..., Inbox], queue: WorkQueue, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> MakeInbox:
    """Makes an inbox with a Stripe source, whose worker gets its events from the queue and from it alone."""
    never_query(monkeypatch)
    rows("CREATE TABLE ledger (event_id TEXT NOT NULL, note TEXT)")

    def make(options: SourceOptions | None = None, **settings: Any) -> Inbox:
        inbox = make_inbox(**{"worker": True, "queue": f"sqs:{queue.url}", "lease": LEASE, **settings})
        inbox.source("stripe", secrets=["whsec_test"], **(options or {}))
        return inbox

    return make
