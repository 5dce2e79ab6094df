"""The sender: committed events go to the queue, off the path of the response."""

import pytest

from tests.support.consumers import outcomes_are, record, send
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work_queue import MakeInbox, WorkQueue

pytestmark = pytest.mark.anyio


async def test_each_consumer_gets_its_own_message(make: MakeInbox, queue: WorkQueue, rows: Rows) -> None:
    inbox = make()
    handled: list[tuple[str, str]] = []
    record(inbox, handled, "main", "billing", "search")
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await eventually(outcomes_are(rows, main="processed", billing="processed", search="processed"))
        await eventually(lambda: queue.is_empty, "the messages are deleted")
    assert sorted(handled) == [("billing", "evt_1"), ("main", "evt_1"), ("search", "evt_1")]
