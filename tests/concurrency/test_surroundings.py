"""Context managers around user functions: plain, async, and functions that return an awaitable."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import pytest

from oncehook.concurrency.calling import Threads, call
from oncehook.concurrency.surroundings import (
    CurrentSurrounding,
    Surrounding,
    end_surrounding,
    surround_calls,
    surrounding,
)
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio

FRAMEWORK: ContextVar[str] = ContextVar("framework", default="none")


def make_surrounding(name: str, log: list[str]) -> Surrounding:
    @contextmanager
    def surround() -> Iterator[None]:
        token = FRAMEWORK.set(f"{FRAMEWORK.get()} {name}")
        log.append(f"enter {name} in {threading.current_thread().name}")
        try:
            yield
        finally:
            FRAMEWORK.reset(token)
            log.append(f"exit {name}")

    return surround


async def in_loop() -> str:
    await next_turn()
    return FRAMEWORK.get()


def plain() -> str:
    return FRAMEWORK.get()


def decorated() -> object:
    return in_loop()


@pytest.mark.parametrize("function", [in_loop, plain, decorated])
async def test_function_is_called_within_all_surroundings(function: Callable[[], object]) -> None:
    log: list[str] = []
    both = [make_surrounding("flask", log), make_surrounding("otel", log)]
    surround_calls(both)
    surround_calls(both)  # a second time changes nothing
    result = await call("it", function, Threads(1, "handlers"), 10)
    assert result == "none flask otel" and FRAMEWORK.get() == "none"
    assert log[-2:] == ["exit otel", "exit flask"]
    end_surrounding(both)
    assert await call("it", function, Threads(1, "handlers"), 10) == "none"


async def test_plain_function_is_surrounded_in_its_own_thread() -> None:
    log: list[str] = []
    surround_calls([make_surrounding("flask", log)])
    await call("it", plain, Threads(1, "handlers"), 10)
    assert log == ["enter flask in handlers-0", "exit flask"]


async def test_surrounding_that_cannot_be_entered_fails_the_call_and_exits_the_others() -> None:
    log: list[str] = []

    def broken() -> AbstractContextManager[None]:
        raise ValueError("no app")

    surround_calls([make_surrounding("flask", log), broken])
    with pytest.raises(ValueError, match="no app"):
        await call("it", plain, Threads(1, "handlers"), 10)
    assert log[-1] == "exit flask"


def test_other_event_loops_have_no_surroundings() -> None:
    async def surround() -> None:
        surround_calls([make_surrounding("flask", [])])

    async def is_surrounded() -> bool:
        return type(surrounding()()).__name__ != "nullcontext"

    asyncio.run(surround())
    assert not asyncio.run(is_surrounded())


async def test_replaced_context_manager_is_used_by_later_calls() -> None:
    replaceable = CurrentSurrounding(make_surrounding("first", []))
    surround_calls([replaceable])
    try:
        with surrounding()():
            assert plain() == "none first"
        replaceable.current = make_surrounding("second", [])
        with surrounding()():
            assert plain() == "none second"
    finally:
        end_surrounding([replaceable])
