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
from contextvars import ContextVar
from typing import Any

Lane = tuple[Any, bool]
"""A process, and whether it is the lane of its threads."""

PROCESS: ContextVar[Any] = ContextVar("simulated_process", default=None)
IN_THREAD: ContextVar[bool] = ContextVar("simulated_thread", default=False)


class Stuck(Exception):
    """No callback is ready and no timer is set, so the run would never end."""


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

    _ready: deque[asyncio.Handle]  # of the base class
    _scheduled: list[Any]  # the same: a heap of timers

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.now = 0.0
        self.lanes: dict[Lane, deque[asyncio.Handle]] = {}
        self.made = 0  # tasks and futures
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []  # of tasks and callbacks, which no code handled
        self.executor: Callable[..., asyncio.Future[Any]] | None = None  # runs the work of threads
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
        """Record what no code handled. Futures of statements whose caller was cancelled are not counted."""
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

    def _run_once(self) -> None:
        self._sort()
        lane = self._choose()
        if lane is None:
            return
        handle = self.lanes[lane].popleft()
        if not handle._cancelled:
            handle._run()

    def _sort(self) -> None:
        """Move the callbacks that are ready, and those whose time has come, to their lanes."""
        while self._ready:
            self._append(self._ready.popleft())
        while self._scheduled and self._scheduled[0]._when <= self.now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._append(handle)

    def _append(self, handle: Any) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS, None)
        if process is not None and process.is_dead:
            return
        self.lanes.setdefault((process, handle._context.get(IN_THREAD, False)), deque()).append(handle)

    def _choose(self) -> Lane | None:
        """Return a lane with a callback. If there is none, let time pass until the next timer."""
        ready: list[Lane] = []
        wake = float("inf")
        for lane, handles in list(self.lanes.items()):
            process, in_thread = lane
            if process is not None and process.is_dead:
                del self.lanes[lane]
            elif handles:
                until = 0.0 if process is None else process.stopped_until(in_thread)
                if until > self.now:
                    wake = min(wake, until)
                else:
                    ready.append(lane)
        if ready:
            return ready[0] if len(ready) == 1 else self.rng.choice(ready)
        if self._scheduled:
            wake = min(wake, self._scheduled[0]._when)
        if wake == float("inf"):
            raise Stuck("the simulation waits for nothing")
        self.now = max(self.now, wake)
        return None
