"""Calls user functions: handlers, effects and canonical fetchers.

If a call returns an awaitable, it is awaited within the same timeout, so a function counts as done only when it has
run. An `async def` runs in the event loop. Everything else runs in a new daemon thread, and its timeout starts with the
thread. A thread that does not end in time is abandoned and its slot is freed; it does not keep the process alive.
"""

import asyncio
import functools
import inspect
import itertools
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

from oncehook.concurrency.surroundings import Surrounding, surrounding
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Postpone, Retry, ScheduleRetry, decide
from oncehook.model.values import SEALED_PREFIX

Function = Callable[..., Any]

MAX_THREADS_PER_SLOT = 4
"""Limits the threads, including abandoned ones in functions that do not end."""

PATIENCE = 10.0
"""Seconds that a call waits for a free thread before it is released."""

RETRY_SECONDS = 5.0
"""Seconds after which such a call is due again."""

PACKAGE_PATH = str(Path(__file__).parents[1])


class ProcessExit(Exception):
    """A user function raised an exception that ends a process, such as SystemExit. Only its call fails."""


class GeneratorReturned(TypeError):
    """A call returned a generator, so none of its code has run."""


# -- registration ---------------------------------------------------------------------------------------------------


def wrapped_function(function: Function) -> Function:
    """The function that a call runs: inside partials, or the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return wrapped_function(type(function).__call__)


def runs_in_loop(function: Function) -> bool:
    """Whether a call certainly returns a coroutine, and so may run in the event loop."""
    try:
        return _cached_runs_in_loop(function)
    except TypeError:  # an unhashable function cannot be cached
        return _cached_runs_in_loop.__wrapped__(function)


@functools.lru_cache(maxsize=1024)
def _cached_runs_in_loop(function: Function) -> bool:
    """Cached, because every event checks the same few functions."""
    return inspect.iscoroutinefunction(wrapped_function(function))


def is_declared_async(function: Function) -> bool:
    """Whether the function, or the one it wraps (`functools.wraps`), is an `async def`."""
    return any(map(runs_in_loop, (function, inspect.unwrap(function), inspect.unwrap(wrapped_function(function)))))


def name_of(function: Function) -> str:
    """The module and qualified name of a callable."""
    target = wrapped_function(function) if isinstance(function, functools.partial) else function
    if not hasattr(target, "__qualname__"):
        target = type(target)
    return f"{getattr(target, '__module__', '?')}.{target.__qualname__}"


def check_function(function: Function, name: str, retry: Any = None, timeout: Any = None) -> None:
    """Raise ConfigurationError at registration for a function, retry policy or timeout that cannot work."""
    if not callable(function):
        raise ConfigurationError(f"{name} is a {type(function).__name__}, which cannot be called: pass a function")
    called = wrapped_function(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(
            f"{name} has a `yield`, so calling it would run none of its code: make it a plain function"
        )
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"{name} has retry={retry!r}: pass a Retry, such as Retry(attempts=5)")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise ConfigurationError(f"{name} has timeout={timeout!r}: pass a duration above 0, such as '30s'")


def signature_of(function: Function, name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, by name."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} has no signature that Python can read: wrap it in a `def`") from None


def count_positional(function: Function, name: str, payloads: Collection[str] = ()) -> int:
    """Count the positional parameters, without `payloads`. Keyword-only parameters with a default are ignored."""
    parameters = [p for p in signature_of(function, name).values() if p.name not in payloads]
    kinds = {parameter.kind for parameter in parameters}
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required:
        raise ConfigurationError(
            f"{name} requires the keyword argument {required[0]!r}, but Oncehook passes only positional arguments: "
            "remove its `*`"
        )
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ConfigurationError(
            f"{name} takes any arguments (`*`), so Oncehook cannot know which ones to pass: name its parameters, or "
            "use functools.wraps in your decorator"
        )
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


# -- the call -------------------------------------------------------------------------------------------------------


async def call(name: str, function: Function, threads: "Threads", seconds: float, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function and return its result. Raises Postpone if no thread is free.

    Raises TimeoutError, with `name` in its message, if the function does not end within `seconds` after its start.
    """
    in_loop = runs_in_loop(function)
    if not in_loop:
        await threads.acquire_slot()
    limit, surround = asyncio.timeout(seconds), surrounding()
    try:
        async with limit:
            if in_loop:
                with surround():
                    return await _await_all(function(*args, **kwargs))
            context = copy_context()
            result = await threads.run(context, functools.partial(_call_within, surround, function, *args, **kwargs))
            if not inspect.isawaitable(result):
                return _check_result(result)
            return await asyncio.create_task(_guarded(surround, result), context=context)
    except TimeoutError:
        if not limit.expired():
            raise  # the function raised it itself
        raise TimeoutError(f"{name} did not finish within {seconds:g} s") from None
    except BaseException as error:
        if _ends_process(error):
            raise _process_exit(error) from None
        raise


def _call_within(surround: Surrounding, function: Function, /, *args: Any, **kwargs: Any) -> Any:
    with surround():
        return function(*args, **kwargs)


async def _guarded(surround: Surrounding, awaitable: Awaitable[Any]) -> Any:
    """Await in a new task, where a SystemExit would otherwise end the event loop."""
    try:
        with surround():
            return await _await_all(awaitable)
    except BaseException as error:
        if _ends_process(error):
            raise _process_exit(error) from None
        raise


async def _await_all(result: Any) -> Any:
    """Await a result until it is no longer awaitable."""
    while result is not None and inspect.isawaitable(result):
        result = await result
    return _check_result(result)


def _check_result(result: Any) -> Any:
    if result is None:  # almost always
        return None
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise GeneratorReturned("the function returned a generator, so none of its code has run: remove its `yield`")
    return result


def _ends_process(error: BaseException) -> bool:
    """Whether the exception would end more than the call. Cancellation and Ctrl-C come from outside."""
    return not isinstance(error, (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit))


def _process_exit(error: BaseException) -> ProcessExit:
    return ProcessExit(error_summary(error)).with_traceback(error.__traceback__)


class Threads:
    """Threads for plain functions: `slots` concurrent calls, in one event loop.

    A call that does not end in time frees its slot, and its thread is abandoned. When there are MAX_THREADS_PER_SLOT
    threads per slot, new calls wait for up to `patience` seconds.
    """

    def __init__(self, slots: int, name: str, *, patience: float = PATIENCE) -> None:
        self.name = name
        self.patience = patience
        self._free = asyncio.Semaphore(slots)
        self._max_abandoned = (MAX_THREADS_PER_SLOT - 1) * slots
        self._abandoned = 0
        self._numbers = itertools.count()

    async def acquire_slot(self) -> None:
        """Wait for a free slot. The caller must call `run` next. Raises Postpone if no slot is free in time."""
        try:
            async with asyncio.timeout(self.patience):
                await self._free.acquire()
        except TimeoutError:
            reason = "no thread is free: plain functions are hanging, or too many are running"
            raise Postpone(reason, after=RETRY_SECONDS) from None

    async def run(self, context: Context, work: Callable[[], Any]) -> Any:
        """Run `work` in a thread and return its result. If this is cancelled, the thread is abandoned."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = context.run(work), None
            except Exception as error:
                outcome = None, error
            except BaseException as error:
                outcome = None, _process_exit(error)
            with suppress(RuntimeError):  # the loop is closed: the result is not needed
                loop.call_soon_threadsafe(self._finish, ended, outcome)

        try:
            threading.Thread(target=run, name=f"{self.name}-{next(self._numbers)}", daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise Postpone(f"no thread can be started: {error}", after=RETRY_SECONDS) from None
        try:
            result, failure = await ended
        except asyncio.CancelledError:
            if ended.cancelled():
                self._abandon()
            raise
        if failure is not None:
            raise failure
        return result

    def _finish(self, ended: "asyncio.Future[Any]", outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.cancelled():
            ended.set_result(outcome)
            self._free.release()
            return
        self._abandoned -= 1
        if self._abandoned >= self._max_abandoned:  # when this call was abandoned, its slot was not freed
            self._free.release()

    def _abandon(self) -> None:
        self._abandoned += 1
        if self._abandoned <= self._max_abandoned:
            self._free.release()


def await_or_block(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Return an awaitable when called from an event loop; block for the result when called from a thread.

    `awaitable` itself runs in `loop`.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:  # a thread
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop).result()
    if running is loop:
        return awaitable
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# -- failures -------------------------------------------------------------------------------------------------------


def after_failure(retry: Retry, attempt: int, error: BaseException) -> tuple[float | None, str]:
    """Return the seconds until the next attempt, or None for no further attempt, and the summary of the error."""
    decision = decide(retry, attempt, error)
    return decision.after if isinstance(decision, ScheduleRetry) else None, error_summary(error)


def error_summary(error: BaseException) -> str:
    """The type and first line of a user's error. Drivers and validators put row data or payloads in later lines.

    A sender may choose a part of the text. It must not look like one that the key ring has encrypted.
    """
    try:
        first, *_ = str(error).splitlines() or [""]
    except Exception:  # a failing __str__ must not prevent the attempt from being recorded
        first = ""
    return f"{type(error).__name__}: {first.replace(SEALED_PREFIX, 'oncehook-aesgcm-')}"[:2000]


def error_class(summary: str) -> str:
    """The class of an error from its summary, for log lines that must not show the text."""
    return summary.partition(":")[0]


def user_traceback(error: BaseException) -> str:
    """The traceback of a user's error, without Oncehook's frames and without values."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith(PACKAGE_PATH)]
    return "".join(traceback.format_list(user_frames or frames))[-8000:]
