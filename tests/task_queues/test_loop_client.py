"""Clients that belong to one event loop."""

import asyncio

import pytest

from oncehook.task_queues import loop_client
from oncehook.task_queues.loop_client import LoopClient
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


class Clients:
    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.fails = self.hangs = False
        self.client = LoopClient(self.open, self.close)

    async def open(self) -> int:
        await next_turn()
        if self.fails:
            raise OSError("refused")
        self.opened += 1
        return self.opened

    async def close(self, number: int) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        self.closed = number
        raise OSError("already gone")


async def test_concurrent_callers_share_one_client_until_it_is_closed() -> None:
    clients = Clients()
    assert await asyncio.gather(*(clients.client.get() for _ in range(3))) == [1, 1, 1]
    await clients.client.close()
    await clients.client.close()
    assert clients.closed == 1
    assert await clients.client.get() == 2


async def test_failed_opening_is_tried_again_by_the_next_caller() -> None:
    clients = Clients()
    clients.fails = True
    with pytest.raises(OSError, match="refused"):
        await clients.client.get()
    clients.fails = False
    assert await clients.client.get() == 1


async def test_client_that_does_not_close_does_not_delay_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_client, "CLOSE_SECONDS", 0.01)
    clients = Clients()
    clients.hangs = True
    await clients.client.get()
    await clients.client.close()


def test_another_event_loop_gets_its_own_client() -> None:
    clients = Clients()
    assert asyncio.run(clients.client.get()) == 1
    assert asyncio.run(clients.client.get()) == 2
    asyncio.run(clients.client.close())  # in a third loop: it is only forgotten
    assert clients.closed == 0
