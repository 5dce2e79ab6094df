"""Calls into user functions: timeouts, threads, results, and the checks at registration."""

import asyncio
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Retry
from oncehook.concurrency.calling import (
    GeneratorReturned,
    ProcessExit,
    Threads,
    after_failure,
    await_or_block,
    call,
    error_summary,
    name_of,
    user_traceback,
)
from oncehook.handlers.registry import Handler
from oncehook.model.retry import Postpone
from oncehook.store.encryption import SEALED
from tests.support.registration import make_registration, wrapped
from tests.support.waiting import eventually, hang, stays_true

pytestmark = pytest.mark.anyio


async def test_a_function_may_have_parameters_of_any_name() -> None:
    names = {"name": 1, "function": 2, "threads": 3, "seconds": 4, "args": 5, "kwargs": 6, "func": 7, "self": 8}

    async def asynchronous(**arguments: int) -> dict[str, int]:
        return arguments

    for function in (asynchronous, wrapped(asynchronous), dict):
        assert await call("it", function, Threads(1, "test"), 5.0, **names) == names


async def test_the_timeout_includes_an_awaitable_that_a_plain_function_returns() -> None:
    with pytest.raises(TimeoutError, match=r"it did not finish within 0\.1 s"):
        await call("it", wrapped(hang), Threads(1, "test"), 0.1)


async def test_generators_are_rejected_at_registration_and_at_the_call() -> None:
    inbox = make_registration()

    def plain(event: Event) -> Any:
        yield

    async def asynchronous(event: Event) -> Any:
        yield

    functions: list[Callable[..., Any]] = [plain, asynchronous, functools.partial(plain)]
    for function in functions:
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.on("stripe", "*")(function)
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.effect(name="send")(function)
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.canonical("stripe", function)
        with pytest.raises(GeneratorReturned):
            await call("it", wrapped(function), Threads(1, "test"), 5.0, None)


class Callee:
    async def __call__(self, event: Event) -> None: ...


async def plain(event: Event, *, extra: int = 0) -> None: ...


def test_every_callable_has_a_name() -> None:
    assert name_of(functools.partial(functools.partial(plain), extra=1)) == f"{__name__}.plain"
    assert name_of(Callee()) == f"{__name__}.Callee"
    for function in (functools.partial(plain, extra=1), Callee()):
        handler = Handler(source="stripe", pattern="*", function=function, retry=Retry(), timeout=1.0)
        assert handler.name.startswith(__name__) and handler.is_async and not handler.takes_tx


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": -1}, {"batch": 1.5}, {"batch": True}, {"timeout": "0s"}, {"timeout": -1},
        {"timeout": "soon"}, {"retry": 5}, {"retry": 0}, {"once_per": ()}, {"once_per": ""}, {"once_per": ["id", ""]},
    ],
)  # fmt: skip
async def test_registration_rejects_options_that_cannot_work(wrong: Any) -> None:
    inbox: Any = make_registration()
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        inbox.on("stripe", "*", **wrong)(plain)
    if "batch" not in wrong and "once_per" not in wrong:
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            inbox.effect(**wrong)(plain)


def test_registration_rejects_a_handler_that_cannot_be_called_with_positions() -> None:
    def keyword(event: Event, *, tx: Any) -> None: ...

    def three(event: Event, tx: Any, x: int = 1) -> None: ...

    def keywords(**kwargs: Any) -> None: ...

    def anything(*args: Any, **kwargs: Any) -> None: ...

    for function, sentence in (
        (keyword, "requires the keyword argument 'tx'"),
        (three, "not 3 arguments"),
        (keywords, "not 0 arguments"),
        (anything, "functools.wraps"),
        (5, "cannot be called"),
        ({}.update, "has no signature"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            Handler(source="stripe", pattern="*", function=function, retry=Retry(), timeout=1.0)  # type: ignore[arg-type]


def test_an_effect_of_a_partial_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name="):
        make_registration().effect(functools.partial(plain))


async def test_an_error_keeps_its_cause_and_its_summary_is_its_first_line() -> None:
    async def fail() -> None:
        raise ValueError("a") from KeyError("b")

    for function in (fail, wrapped(fail)):
        with pytest.raises(ValueError, match="a") as raised:
            await call("it", function, Threads(1, "test"), 5.0)
        assert isinstance(raised.value.__cause__, KeyError)
    assert error_summary(ProcessExit("x\ny")) == "ProcessExit: x"


def test_text_of_a_sender_in_an_error_does_not_look_encrypted() -> None:
    error = ValueError("oncehook:aesgcm:2026a:QUJD")
    assert not SEALED.search(error_summary(error)) and "2026a:QUJD" in error_summary(error)


@pytest.mark.system  # it waits for timeouts
async def test_the_timeout_starts_when_the_thread_starts() -> None:
    threads = Threads(1, "test")

    go_on = threading.Event()
    first = asyncio.create_task(call("it", lambda: go_on.wait(60), threads, 30.0))
    second = asyncio.create_task(call("it", lambda: "second", threads, 0.5))
    await stays_true(lambda: not second.done(), "a call waits for the only thread without timing out", seconds=0.6)
    go_on.set()
    assert (await first, await second) == (True, "second")


@pytest.mark.system  # it waits for timeouts
async def test_slots_are_free_again_after_abandoned_threads_end() -> None:
    go, threads = threading.Event(), Threads(1, "test", patience=0.2)
    for _ in range(4):
        with pytest.raises(TimeoutError):
            await call("it", lambda: go.wait(60), threads, 0.05)
    with pytest.raises(Postpone):
        await call("it", lambda: None, threads, 5.0)
    go.set()
    threads.patience = 30.0
    for _ in range(6):
        await call("it", lambda: None, threads, 5.0)
    await eventually(lambda: threads._abandoned == 0)
    assert threads._free._value == 1


async def test_a_thread_that_raises_system_exit_fails_only_its_call() -> None:
    threads = Threads(1, "test")

    def leave() -> None:
        raise SystemExit("bye")

    with pytest.raises(ProcessExit, match="SystemExit: bye"):
        await call("it", leave, threads, 5.0)
    assert await call("it", lambda: 7, threads, 5.0) == 7


async def test_a_plain_function_runs_in_a_named_thread_with_the_callers_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    variable.set("from the caller")

    def where() -> tuple[str, str]:
        return threading.current_thread().name, variable.get()

    name, value = await call("it", where, Threads(1, "oncehook-test"), 5.0)
    assert name.startswith("oncehook-test-") and value == "from the caller"


async def test_await_or_block_returns_an_awaitable_in_a_loop_and_a_result_in_a_thread() -> None:
    loop = asyncio.get_running_loop()

    async def answer() -> int:
        return 7

    assert await await_or_block(answer(), loop) == 7
    assert await asyncio.to_thread(lambda: await_or_block(answer(), loop)) == 7

    async def from_another_loop() -> int:
        result: int = await await_or_block(answer(), loop)
        return result

    assert await asyncio.to_thread(asyncio.run, from_another_loop()) == 7


def test_the_traceback_of_a_user_error_has_no_frames_of_oncehook() -> None:
    def fail() -> None:
        raise ValueError("secret-value")

    async def attempt() -> str:
        try:
            await call("it", fail, Threads(1, "test"), 5.0)
        except ValueError as error:
            return user_traceback(error)
        return ""

    text = asyncio.run(attempt())
    assert "in fail" in text and "calling.py" not in text.replace("test_calling.py", "")


def test_a_failure_is_retried_until_the_policy_has_no_attempt_left() -> None:
    policy = Retry(attempts=2, first=1, most=1)
    after, summary = after_failure(policy, 1, ValueError("first line\nsecond line"))
    assert after is not None and 0 < after <= 2 and summary == "ValueError: first line"
    assert after_failure(policy, 2, ValueError("x")) == (None, "ValueError: x")
