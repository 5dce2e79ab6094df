"""An event loop without real time: many processes in one thread, and a seed decides which of them runs next.

Each process has two lanes: its event loop and its threads. Callbacks of a lane run in their order, as asyncio promises.
Between lanes the order is random. When no callback is ready, the time jumps to the next timer.
"""

import asyncio
import heapq
import random
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from operator import attrgetter
from typing import Any, TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class Lane:
    """Callbacks of a process that run in their order: those of its event loop, or those of its threads."""

    def __init__(self, loop: "SimulatedLoop", process: Any) -> None:
        self.loop = loop
        self.process = process
        self.handles: deque[SimulatedHandle] = deque()
        self.number = 0  # the order in which lanes had their first callback
        self.until = 0.0  # it runs nothing before this moment
        self.is_dead = False
        self.context = copy_context()
        self.context.run(LANE.set, self)

    def append(self, handle: "SimulatedHandle") -> None:
        if self.is_dead:
            return
        if not self.handles:
            self.loop.activate(self)
        self.handles.append(handle)

    def die(self) -> None:
        """Drop all callbacks, those that come later too."""
        self.is_dead = True
        if self.handles:
            self.handles.clear()
            self.loop.active.remove(self)


LANE: ContextVar[Lane] = ContextVar("simulated_lane")
"""The lane whose callback runs now."""


def current_process() -> Any:
    """The process whose code runs now, or None: the sender, the operators and the supervisor."""
    lane = LANE.get(None)
    return None if lane is None else lane.process


class Stuck(Exception):
    """No callback is ready and no timer is set, so the run would never end."""


class SimulatedHandle(asyncio.TimerHandle):
    """A callback in a lane. It has what asyncio reads of a handle."""

    __slots__ = ()

    def __init__(self, moment: float, callback: Any, args: Any, context: Context) -> None:
        self._when, self._callback, self._args, self._context = moment, callback, args, context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(asyncio.Future[Any]):
    """A future with a reproducible hash, as above."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks on a virtual clock, in an order that `rng` decides."""

    _stopping: bool  # of the base class

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.now = 0.0
        self.active: list[Lane] = []  # lanes with callbacks, in the order of their numbers
        self.made = 0  # tasks and futures
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []  # of tasks and callbacks, which no code handled
        self.executor: Callable[..., asyncio.Future[Any]] | None = None  # runs the work of threads
        self.outside = Lane(self, None)  # the sender, the operators and the supervisor
        self._lanes = 0
        self._timers: list[tuple[float, int, SimulatedHandle]] = []
        self._timed = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        future = SimulatedFuture(loop=self)
        self.made += 1
        future.number = self.made
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
        task = SimulatedTask(coroutine, loop=loop, context=context)
        self.made += 1
        task.number = self.made
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # tasks of a killed process never end
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record errors that no code handled, except those of statements whose caller was cancelled."""
        if isinstance(context.get("task", context.get("future")), SimulatedTask) or "handle" in context:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def abandon_tasks(self) -> None:
        """End the coroutines of tasks that wait forever, without running them in a loop."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a `finally` makes coroutines that nothing awaits
            for task in self.tasks:
                for _ in range(5):  # a `finally` may await once more
                    try:
                        task.get_coro().close()
                        break
                    except BaseException:  # noqa: S112  # whatever the code of a dead process raises
                        continue
        self.tasks.clear()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        assert self.executor is not None
        return self.executor(executor, func, *args)

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector to wake."""

    # -- callbacks ------------------------------------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = SimulatedHandle(self.now, callback, args, copy_context() if context is None else context)
        handle._context.get(LANE, self.outside).append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = SimulatedHandle(when, callback, args, copy_context() if context is None else context)
        self._timed += 1
        heapq.heappush(self._timers, (when, self._timed, handle))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def activate(self, lane: Lane) -> None:
        """Note that a lane has a callback."""
        if not lane.number:
            self._lanes += 1
            lane.number = self._lanes
        self.active.append(lane)
        if len(self.active) > 1 and self.active[-2].number > lane.number:
            self.active.sort(key=attrgetter("number"))

    def clear(self) -> None:
        """Drop everything that waits."""
        self._timers.clear()
        for lane in list(self.active):
            lane.die()

    # -- running --------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        timers, active = self._timers, self.active
        while not self._stopping:
            while timers and timers[0][0] <= self.now:
                handle = heapq.heappop(timers)[2]
                if not handle._cancelled:
                    handle._context.get(LANE, self.outside).append(handle)
            lane = self._choose()
            if lane is None:
                continue
            handle = lane.handles.popleft()
            if not lane.handles:
                active.remove(lane)
            if not handle._cancelled:
                self._run(handle)

    def _run(self, handle: SimulatedHandle) -> None:
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": handle})

    def _choose(self) -> Lane | None:
        """Return a lane with a callback. If there is none, let time pass until the next timer."""
        active, now = self.active, self.now
        ready = [lane for lane in active if lane.until <= now]
        if ready:
            return ready[0] if len(ready) == 1 else self.rng.choice(ready)
        wake = min((lane.until for lane in active), default=float("inf"))
        if self._timers:
            wake = min(wake, self._timers[0][0])
        if wake == float("inf"):
            raise Stuck("the simulation waits for nothing")
        self.now = max(now, wake)
        return None
