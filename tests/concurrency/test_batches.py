"""The first item starts a batch, and items that arrive during it share the next."""

import asyncio

import pytest

from oncehook.concurrency.batches import Batches
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


async def test_items_that_arrive_during_a_batch_share_the_next() -> None:
    gate, batches = asyncio.Event(), list[list[int]]()

    async def run(batch: list[int]) -> None:
        batches.append(batch)
        await gate.wait()

    items = Batches(run, size=3)
    items.add(1)
    await next_turn()
    for number in range(2, 7):
        items.add(number)
    assert len(items) == 5
    gate.set()
    await items.drain()
    assert batches == [[1], [2, 3, 4], [5, 6]]


async def test_drain_returns_if_nothing_runs_and_an_idle_batch_starts_again() -> None:
    seen: list[int] = []

    async def run(batch: list[int]) -> None:
        seen.extend(batch)

    items = Batches(run)
    await items.drain()
    items.add(1)
    await items.drain()
    items.add(2)
    await items.drain()
    assert seen == [1, 2]
