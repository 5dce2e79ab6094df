"""Threads for clients that block: they live on, and a call that hangs is abandoned."""

import asyncio
import threading

import pytest

from oncehook.model.retry import Postpone
from oncehook.task_queues import threads
from oncehook.task_queues.threads import BlockingThreads
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "oncehook-lane"]


async def test_calls_in_sequence_use_one_thread_which_ends_at_the_close() -> None:
    lane, seen = BlockingThreads("lane"), set[int]()
    for _ in range(5):
        await lane.run(lambda: seen.add(threading.get_ident()))
    assert len(seen) == 1 and len(names()) == 1
    lane.close()
    await eventually(lambda: not names(), "the thread ends")
    await lane.run(lambda: seen.add(threading.get_ident()))
    lane.close()
    await eventually(lambda: not names(), "the second thread ends")


async def test_concurrent_calls_have_a_thread_each() -> None:
    lane, all_started = BlockingThreads("lane"), threading.Barrier(3)
    await asyncio.gather(*(lane.run(lambda: all_started.wait(30)) for _ in range(3)))
    assert len(names()) == 3
    lane.close()
    await eventually(lambda: not names(), "the threads end")


async def test_error_of_a_call_is_raised_and_its_thread_is_used_again() -> None:
    lane = BlockingThreads("lane")
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await lane.run(lambda: exit_with(3))
    await lane.run(lambda: None)
    assert len(names()) == 1
    lane.close()
    await eventually(lambda: not names(), "the thread ends")


def exit_with(code: int) -> None:
    raise SystemExit(code)


async def test_call_that_hangs_is_abandoned_and_too_many_of_them_postpone_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MAX_ABANDONED", 2)
    lane, go_on = BlockingThreads("lane"), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lane.run(lambda: go_on.wait(30))
    with pytest.raises(Postpone, match="2 earlier calls of lane hang"):
        await lane.run(lambda: None)
    go_on.set()
    await eventually(lambda: not names(), "the abandoned threads end when their calls do")
    await lane.run(lambda: None)
    lane.close()
    await eventually(lambda: not names(), "the thread ends")


def test_thread_ends_if_its_event_loop_is_closed() -> None:
    lane, go_on = BlockingThreads("lane"), threading.Event()

    async def abandon() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lane.run(lambda: go_on.wait(30))

    asyncio.run(abandon())
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "oncehook-lane")
    go_on.set()
    thread.join(30)
    assert not thread.is_alive()
