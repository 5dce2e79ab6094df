"""Local wake-ups: a worker or relay looks for work when a retry is due, however long `poll` is."""

from collections.abc import Callable

import pytest

from oncehook import Effect, Event, Inbox, Retry
from oncehook.concurrency.wakeup_queue import HORIZON, STEP, WakeupQueue
from oncehook.model.retry import Postpone
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


def test_the_queue_returns_the_time_until_the_next_wakeup_up_to_poll() -> None:
    clock = ManualClock()
    wakeups = WakeupQueue(clock)
    assert wakeups.seconds_left(1.0) == 1.0
    wakeups.schedule(None)
    wakeups.schedule(0.5)
    wakeups.schedule(0.2)
    assert 0.2 < wakeups.seconds_left(1.0) < 0.2 + 2 * STEP
    assert wakeups.seconds_left(0.1) == 0.1
    clock.advance(0.3)
    assert wakeups.seconds_left(1.0) == 0.0, "a wake-up is due"
    assert 0.2 < wakeups.seconds_left(1.0) < 0.2 + 2 * STEP, "each wake-up is returned once"
    clock.advance(0.3)
    assert (wakeups.seconds_left(1.0), wakeups.seconds_left(1.0)) == (0.0, 1.0)


def test_the_queue_stores_a_bounded_number_of_wakeups() -> None:
    wakeups = WakeupQueue(ManualClock())
    for number in range(100_000):
        wakeups.schedule(number / 1000)
    assert len(wakeups._steps) <= HORIZON / STEP + 2


async def test_retries_and_postponed_work_start_when_due_without_polling(
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
