"""Graceful shutdown: a grace period for running tasks, and one deadline for all steps."""

import asyncio

import pytest

from oncehook.concurrency.stopping import Deadline, finish_or_cancel, is_stopping
from tests.support.waiting import hang, next_turn

pytestmark = pytest.mark.anyio


async def test_tasks_that_finish_within_the_grace_period_are_not_cancelled() -> None:
    go_on = asyncio.Event()

    async def work() -> str:
        await go_on.wait()
        return "finished"

    task = asyncio.create_task(work())
    ending = asyncio.create_task(finish_or_cancel({task}, 30.0))
    await next_turn()
    go_on.set()
    await ending
    assert task.result() == "finished"


async def test_tasks_that_exceed_the_grace_period_are_cancelled_and_awaited() -> None:
    cleaned_up: list[bool] = []

    async def work() -> None:
        try:
            await hang()
        finally:
            await next_turn()
            cleaned_up.append(is_stopping())

    task = asyncio.create_task(work())
    await finish_or_cancel({task}, 0.01)
    assert task.cancelled() and cleaned_up == [True], "the task must see that it is being stopped"


async def test_a_cancelled_error_that_user_code_raises_is_not_a_stop() -> None:
    async def raise_cancelled() -> bool:
        try:
            raise asyncio.CancelledError
        except asyncio.CancelledError:
            return is_stopping()

    assert await asyncio.create_task(raise_cancelled()) is False


async def test_nothing_to_finish_returns_immediately() -> None:
    await finish_or_cancel(set(), 30.0)


async def test_all_steps_share_the_deadline_of_the_first_call() -> None:
    deadline, loop = Deadline(), asyncio.get_running_loop()
    started = loop.time()
    assert await deadline.run(0.1, hang()) is False
    assert await deadline.run(60.0, hang()) is False, "the second call must not get a new deadline"
    assert loop.time() - started < 30
    deadline.clear()
    assert await deadline.run(60.0, next_turn()) is True


async def test_an_error_of_a_step_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("the step failed")

    with pytest.raises(ValueError, match="the step failed"):
        await Deadline().run(60.0, fail(), next_turn())


async def test_a_cancelled_shutdown_cancels_its_steps() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        started.set()
        try:
            await hang()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    shutdown = asyncio.create_task(Deadline().run(60.0, step()))
    await started.wait()
    shutdown.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shutdown
    await asyncio.wait_for(cancelled.wait(), 10)
