"""A worker or a relay that has put something back looks when that is due, however long `poll` is."""

from collections.abc import Callable

import pytest

from oncehook import Effect, Event, Inbox, Retry
from oncehook.concurrency.clock import Clock
from oncehook.concurrency.wakeup_queue import HORIZON, STEP, WakeupQueue
from oncehook.model.retry import Postpone
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


class Hands(Clock):
    at = 1000.0

    def monotonic(self) -> float:
        return self.at


def test_the_next_time_is_waited_for_and_no_longer_than_poll() -> None:
    clock = Hands()
    wakeups = WakeupQueue(clock)
    assert wakeups.seconds_left(1.0) == 1.0
    wakeups.schedule(None)
    wakeups.schedule(0.5)
    wakeups.schedule(0.2)
    assert 0.2 < wakeups.seconds_left(1.0) < 0.2 + 2 * STEP
    assert wakeups.seconds_left(0.1) == 0.1
    clock.at += 0.3
    assert wakeups.seconds_left(1.0) == 0.0, "look now"
    assert 0.2 < wakeups.seconds_left(1.0) < 0.2 + 2 * STEP, "and once for each time"
    clock.at += 0.3
    assert (wakeups.seconds_left(1.0), wakeups.seconds_left(1.0)) == (0.0, 1.0)


def test_so_much_is_remembered_and_no_more() -> None:
    wakeups = WakeupQueue(Hands())
    for number in range(100_000):
        wakeups.schedule(number / 1000)
    assert len(wakeups._steps) <= HORIZON / STEP + 2


async def test_a_retry_comes_when_it_is_due_although_nobody_wakes_the_worker(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(poll="1h")
    inbox.source("stripe", secrets=["whsec_test"])
    soon = Retry(attempts=3, first=0.1, most=0.1)
    handled: list[int] = []

    @inbox.effect(retry=soon)
    async def send(effect: Effect) -> None:
        if effect.attempt < 3:
            raise ConnectionError("no route")

    @inbox.on("stripe", "*", retry=soon)
    async def handle(event: Event) -> None:
        handled.append(event.attempt)
        if len(handled) == 1:
            raise Postpone("busy", after=0.1)
        if event.attempt < 3:
            raise ConnectionError("the bank is closed")
        await event.effect("send", send)

    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(lambda: rows("SELECT attempts FROM webhook_effects WHERE status = 'done'") == [(3,)])
    assert handled == [1, 1, 2, 3]
