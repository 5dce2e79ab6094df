"""Calling a user's function, be it a handler, an effect's function or a canonical fetcher: one way for all of them.

Whatever the call gives that can be awaited is awaited, within the same time limit: nothing counts as done that has not
run. An `async def` runs in the loop. Everything else runs in a daemon thread of its own, and its time counts from when
that begins; a thread that does not end in time is left behind, another takes its place, and it keeps no process alive.
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

from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Postpone, Retry, ScheduleRetry, decide

Function = Callable[..., Any]

MOST_THREADS = 4
"""Times as many threads as places, at most, where some are stuck in functions that do not end."""

PATIENCE = 10.0
"""Seconds that a call waits for a thread before it is put back."""

LATER = 5.0
"""Seconds after which it is tried again then."""

OURS = str(Path(__file__).parents[1])


class Exited(Exception):
    """A function raised what is meant to end a process, such as SystemExit: here it ends its own call."""


class NothingRan(TypeError):
    """A call gave a generator, of which not a line has run."""


# -- what is registered ---------------------------------------------------------------------------------------------


def bare(function: Function) -> Function:
    """What is called in the end: the function in a partial, the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return bare(type(function).__call__)


def runs_in_loop(function: Function) -> bool:
    """Whether a call gives a coroutine for sure, and so may be made in the loop."""
    try:
        return _known_to_run_in_loop(function)
    except TypeError:  # one that cannot be hashed cannot be remembered
        return _known_to_run_in_loop.__wrapped__(function)


@functools.lru_cache(maxsize=1024)
def _known_to_run_in_loop(function: Function) -> bool:
    """The same, asked for every event of the same few functions."""
    return inspect.iscoroutinefunction(bare(function))


def is_meant_async(function: Function) -> bool:
    """Whether it, or what it wraps (`functools.wraps`), is an `async def`."""
    return any(map(runs_in_loop, (function, inspect.unwrap(function), inspect.unwrap(bare(function)))))


def name_of(function: Function) -> str:
    """Module and name, of whatever can be called."""
    named = bare(function) if isinstance(function, functools.partial) else function
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def check(function: Function, name: str, retry: Any = None, timeout: Any = None) -> None:
    """Refuse at registration what could never be called as it is meant."""
    if not callable(function):
        raise ConfigurationError(f"{name} is a {type(function).__name__}, and cannot be called: give a function")
    called = bare(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(f"{name} has a `yield`, so a call would run nothing of it: make it a plain function")
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"{name} has retry={retry!r}: give a Retry, such as Retry(attempts=5)")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise ConfigurationError(f"{name} has timeout={timeout!r}: give a time above 0, such as '30s'")


def signature_of(function: Function, name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, by name."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} does not say what arguments it takes: wrap it in a `def`") from None


def positional(function: Function, name: str, payloads: Collection[str] = ()) -> int:
    """Count the arguments by position, without `payloads`. A keyword-only one with a default is its own affair."""
    parameters = [p for p in signature_of(function, name).values() if p.name not in payloads]
    kinds = {parameter.kind for parameter in parameters}
    needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if needed:
        raise ConfigurationError(f"{name} needs {needed[0]!r} by keyword, and is called with positions: remove its `*`")
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ConfigurationError(
            f"{name} takes any arguments (`*`), so what to give it is not known: name them, or, in a decorator, use "
            "functools.wraps"
        )
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


# -- the call -------------------------------------------------------------------------------------------------------


async def call(who: str, function: Function, threads: "Threads", seconds: float, /, *args: Any, **named: Any) -> Any:
    """What the function gives, within so many seconds from its beginning; Postpone if no thread was free for it."""
    in_loop = runs_in_loop(function)
    if not in_loop:
        await threads.take_place()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            if in_loop:
                return await _to_the_end(function(*args, **named))
            context = copy_context()
            given = await threads.run(context, functools.partial(function, *args, **named))
            if not inspect.isawaitable(given):
                return _whole(given)
            return await asyncio.create_task(_guarded(given), context=context)
    except TimeoutError:
        if not limit.expired():
            raise  # the function's own
        raise TimeoutError(f"{who} did not end within {seconds:g} s") from None
    except BaseException as error:
        if _is_of_the_process(error):
            raise _exited(error) from None
        raise


async def _guarded(given: Awaitable[Any]) -> Any:
    """For a task of its own: what is meant to end a process would end the loop there."""
    try:
        return await _to_the_end(given)
    except BaseException as error:
        if _is_of_the_process(error):
            raise _exited(error) from None
        raise


async def _to_the_end(given: Any) -> Any:
    while given is not None and inspect.isawaitable(given):
        given = await given
    return _whole(given)


def _whole(given: Any) -> Any:
    if given is None:  # as nearly always
        return None
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        raise NothingRan("the function gave a generator, of which nothing has run: it must not `yield`")
    return given


def _is_of_the_process(error: BaseException) -> bool:
    """Whether it would end more than the call. A cancellation and Ctrl-C are not the function's own."""
    return not isinstance(error, (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit))


def _exited(error: BaseException) -> Exited:
    return Exited(said(error)).with_traceback(error.__traceback__)


class Threads:
    """Threads for plain functions: `places` calls at once, in one loop.

    One that is not back in time counts no more, and another may be started for it, up to MOST_THREADS times `places`
    in all; then calls wait, for as long as `patience`.
    """

    def __init__(self, places: int, name: str, *, patience: float = PATIENCE) -> None:
        self.name = name
        self.patience = patience
        self._free = asyncio.Semaphore(places)
        self._spare = (MOST_THREADS - 1) * places
        self._late = 0
        self._numbers = itertools.count()

    async def take_place(self) -> None:
        """To be followed by `run` at once. Raises Postpone where nobody makes room: the call has not begun."""
        try:
            async with asyncio.timeout(self.patience):
                await self._free.acquire()
        except TimeoutError:
            raise Postpone("no thread is free: plain functions hang, or too many are called", after=LATER) from None

    async def run(self, context: Context, work: Callable[[], Any]) -> Any:
        """What `work` gives, in a thread. When cancelled, the thread is left to itself."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = context.run(work), None
            except Exception as error:
                outcome = None, error
            except BaseException as error:
                outcome = None, _exited(error)
            with suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(self._leave, ended, outcome)

        try:
            threading.Thread(target=run, name=f"{self.name}-{next(self._numbers)}", daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise Postpone(f"no thread can be started: {error}", after=LATER) from None
        try:
            given, failure = await ended
        except asyncio.CancelledError:
            if ended.cancelled():
                self._is_late()
            raise
        if failure is not None:
            raise failure
        return given

    def _leave(self, ended: "asyncio.Future[Any]", outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.cancelled():
            ended.set_result(outcome)
            self._free.release()
            return
        self._late -= 1
        if self._late >= self._spare:  # its place was not given to another
            self._free.release()

    def _is_late(self) -> None:
        self._late += 1
        if self._late <= self._spare:
            self._free.release()


def in_its_way(answer: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """What is asked of `loop`: awaitable where asked in a loop, and answered at once where asked in a thread."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:  # a thread
        return asyncio.run_coroutine_threadsafe(_awaited(answer), loop).result()
    if running is loop:
        return answer
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(answer), loop))


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


# -- what came of it ------------------------------------------------------------------------------------------------


def after_failure(retry: Retry, attempt: int, error: BaseException) -> tuple[float | None, str]:
    """In how many seconds it is tried again, None for never; and what the error says."""
    decision = decide(retry, attempt, error)
    return decision.after if isinstance(decision, ScheduleRetry) else None, said(error)


def said(error: BaseException) -> str:
    """What a user's error says, in its first line: drivers and validators put the row or the payload below that."""
    try:
        first, *_ = str(error).splitlines() or [""]
    except Exception:  # a __str__ that fails must not keep the attempt from being written down
        first = ""
    return f"{type(error).__name__}: {first}"[:2000]


def told(error: BaseException) -> str:
    """Where a user's error went through: its own frames, never what the values were."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(OURS)]
    return "".join(traceback.format_list(theirs or frames))[-8000:]
