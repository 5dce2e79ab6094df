"""What a delivery awaits for the result of its claims: asyncio's future in a task, and an immediate one without."""

import asyncio

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.receiver.claim import ImmediateFuture, new_waiter
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


def test_immediate_future_resumes_its_coroutine_at_once_with_the_result() -> None:
    future: ImmediateFuture[list[int]] = ImmediateFuture()
    called: list[object] = []
    steps = future.__await__()
    assert next(steps) is future and not future.done()
    future.add_done_callback(called.append)
    future.set_result([])
    assert called == [future] and future.done(), "also with an empty result"
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == []


def test_immediate_future_raises_the_error_in_its_coroutine() -> None:
    future: ImmediateFuture[list[int]] = ImmediateFuture()
    called: list[object] = []
    steps = future.__await__()
    next(steps)
    future.add_done_callback(called.append)
    future.set_exception(StoreUnavailable("no answer"))
    assert called == [future] and future.done()
    with pytest.raises(StoreUnavailable, match="no answer"):
        next(steps)


def test_immediate_future_may_end_before_anything_waits_for_it() -> None:
    future: ImmediateFuture[list[int]] = ImmediateFuture()
    future.set_result([1])
    steps = future.__await__()
    next(steps)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == [1]


async def test_a_task_awaits_a_future_of_its_loop_and_other_code_an_immediate_one() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(new_waiter(loop), asyncio.Future)
    without_task: list[object] = []
    loop.call_soon(lambda: without_task.append(new_waiter(loop)))
    await next_turn()
    assert isinstance(without_task[0], ImmediateFuture)
