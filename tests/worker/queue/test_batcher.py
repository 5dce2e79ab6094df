"""Batches of ten in the background: partial failures, a queue that does not respond, and limits."""

import asyncio
from collections.abc import Sequence

import pytest

from oncehook.model.errors import BrokerUnavailable
from oncehook.worker.queue import batcher as batcher_module
from oncehook.worker.queue.batcher import Batcher
from oncehook.worker.queue.health import QueueHealth
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Target:
    """Records the batches that it gets. The first deliveries of the items in `rejected` fail."""

    def __init__(self, *rejected: int) -> None:
        self.batches: list[list[int]] = []
        self.rejected = list(rejected)
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, items: Sequence[int]) -> list[int]:
        await self.open.wait()
        self.batches.append(list(items))
        failed = [item for item in items if item in self.rejected]
        for item in failed:
            self.rejected.remove(item)
        return failed


async def test_items_that_arrive_during_a_call_share_the_next_ones() -> None:
    target = Target()
    target.open.clear()
    batcher = Batcher(target.send, QueueHealth())
    for number in range(25):
        assert batcher.add(number)
    target.open.set()
    await batcher.flush(10)
    assert max(map(len, target.batches)) == 10
    assert sorted(item for batch in target.batches for item in batch) == list(range(25))


async def test_only_the_items_that_were_not_taken_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "FIRST_PAUSE", 0.001)
    target = Target(2, 2)
    batcher = Batcher(target.send, QueueHealth())
    for number in range(3):
        batcher.add(number)
    await batcher.flush(10)
    assert sorted(map(tuple, target.batches)) == [(0, 1, 2), (2,), (2,)]


async def test_an_item_is_dropped_after_a_few_tries_and_the_next_ones_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "FIRST_PAUSE", 0.001)
    target = Target(*[1] * 100)
    batcher = Batcher(target.send, QueueHealth())
    batcher.add(1)
    batcher.add(2)
    await batcher.flush(10)
    assert [item for batch in target.batches for item in batch].count(1) == batcher_module.TRIES
    assert [item for batch in target.batches for item in batch].count(2) == 1


async def test_the_health_knows_whether_the_queue_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "FIRST_PAUSE", 0.05)
    health, is_down = QueueHealth(), True

    async def send(items: Sequence[int]) -> list[int]:
        if is_down:
            raise BrokerUnavailable("it does not respond")
        return []

    batcher = Batcher(send, health)
    batcher.add(1)
    await eventually(lambda: health.failing_since is not None, "the failure is known")
    is_down = False
    await batcher.flush(10)
    assert health.failing_since is None


async def test_a_bug_in_a_call_does_not_stop_the_next_items() -> None:
    sent: list[int] = []

    async def send(items: Sequence[int]) -> list[int]:
        if 1 in items:
            raise LookupError("a bug")
        sent.extend(items)
        return []

    batcher = Batcher(send, QueueHealth())
    batcher.add(1)
    await batcher.flush(10)
    batcher.add(2)
    await batcher.flush(10)
    assert sent == [2]


async def test_an_item_that_is_added_when_the_last_call_returns_is_sent() -> None:
    sent: list[int] = []
    returned = asyncio.Event()

    async def send(items: Sequence[int]) -> list[int]:
        sent.extend(items)
        returned.set()
        return []

    batcher = Batcher(send, QueueHealth())
    for number in range(50):
        returned.clear()
        batcher.add(number)
        await asyncio.wait_for(returned.wait(), 5)
    assert sent == list(range(50))


async def test_items_above_the_limit_are_dropped_and_a_stop_does_not_wait_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batcher_module, "LIMIT", 3)
    target = Target()
    target.open.clear()
    batcher = Batcher(target.send, QueueHealth())
    assert [batcher.add(number) for number in range(5)] == [True, True, True, False, False]
    await batcher.flush(0.01)
    assert target.batches == []
