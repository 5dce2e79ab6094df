"""What waits in the queues."""

import pytest

from oncehook.intake.status import read_statuses
from tests.support.intake import BrokerQueue, intake_inbox, message

pytestmark = pytest.mark.anyio


async def test_status_counts_the_messages_that_wait(sqlite: str, queue: BrokerQueue) -> None:
    await queue.put(message("evt_1"))
    await queue.put(message("evt_2"))
    (status,) = await read_statuses(intake_inbox(sqlite, queue)._runtime.sources)
    assert (status.source, status.format, status.problem) == ("stripe", "oncehook", None)
    assert status.as_json()["waiting"] == 2 and status.queue.startswith(queue.intake.partition(":")[0])


async def test_status_of_a_broker_that_is_down_is_its_problem(sqlite: str, queue: BrokerQueue) -> None:
    await queue.cut()
    (status,) = await read_statuses(intake_inbox(sqlite, queue)._runtime.sources)
    assert status.counts is None and status.problem
    assert status.as_json()["waiting"] is None


async def test_source_without_an_intake_has_no_status(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue)
    inbox.source("github", secrets=["github-secret"])
    assert [status.source for status in await read_statuses(inbox._runtime.sources)] == ["stripe"]
