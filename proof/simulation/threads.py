"""The threads of a process, as queues of work that the simulated loop runs.

Work is a call into the real code, such as a whole transaction of the writer. It runs at once when its time has come. If
it needs a lock that other work holds, it is tried again later.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from oncehook.store.sqlite.file import Work, Writer
from oncehook.worker.heartbeat import Heartbeat
from proof.simulation.loop import current_process

if TYPE_CHECKING:
    from proof.simulation.world import Process, World


class Blocked(BaseException):
    """The work waits for the write lock. Not an Exception, so that no part of the inbox handles it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # for how long it waits


class Crash(BaseException):
    """The process dies here. Not an Exception, so that no part of the inbox handles it."""


class SimulatedThread:
    """Runs work in order, each after a random latency."""

    def __init__(self, world: "World", process: "Process") -> None:
        self.world = world
        self.process = process
        self.items: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self.timed_out = False  # the work has waited too long for the write lock
        self._is_scheduled = False
        self._deadline: float | None = None

    def submit(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = self.world.loop.create_future()
        self.items.append((work, future))
        self._schedule(self.world.latency())
        return future

    def _schedule(self, seconds: float) -> None:
        if self._is_scheduled or not self.items:
            return
        self._is_scheduled = True
        self.world.loop.call_later(seconds, self._step, context=self.process.thread_lane.context)

    def _step(self) -> None:
        self._is_scheduled = False
        work, future = self.items[0]
        result: Any = None
        failure: BaseException | None = None
        self.timed_out = self._deadline is not None and self.world.loop.now >= self._deadline
        self.world.thread = self
        try:
            result = work()
        except Blocked as blocked:
            self._deadline = self._deadline or self.world.loop.now + blocked.seconds
            self._schedule(0.02)
            return
        except BaseException as error:
            failure = error
        finally:
            self.world.thread = None
        self._deadline = None
        if isinstance(failure, Crash) or self.process.is_dead:
            self.world.kill(self.process)
            return
        self.items.popleft()
        self.world.loop.call_soon(_deliver, future, result, failure, context=self.process.loop_lane.context)
        self._schedule(self.world.latency())


def _deliver(future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


class WriteLock:
    """The write lock of the database file, for all processes: what SQLite and `SqliteFile.write_lock` are together."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.owner: SimulatedThread | None = None

    def acquire(self, timeout: float) -> bool:
        thread = self.world.thread
        assert thread is not None
        if self.owner is None:
            self.owner = thread
            return True
        if thread.timed_out:
            return False
        raise Blocked(timeout)

    def release(self) -> None:
        if self.owner is not None and self.owner.process is self.world.process:
            self.owner = None


class SimulatedPool:
    """The pool of one thread that handlers' transactions use."""

    def __init__(self, world: "World") -> None:
        self.thread = SimulatedThread(world, current_process())

    def submit(self, work: Callable[[], Any]) -> "SimulatedPool":
        if self.thread.items:
            raise Blocked(60.0)
        work()
        return self

    def result(self) -> None:
        """Do nothing: the work is done."""

    def shutdown(self) -> None:
        """Do nothing: there is no thread."""


def make_writer(world: "World") -> type[Writer]:
    """Make the class of the writer. It runs the real `execute`, without a thread."""

    class SimulatedWriter(Writer):
        def __init__(self, path: Any, busy_seconds: float, write_lock: Any) -> None:
            self.path, self.busy_seconds, self.write_lock = path, busy_seconds, write_lock
            self._connection = None
            self._thread = SimulatedThread(world, current_process())

        async def run(self, work: Work) -> Any:
            return await asyncio.shield(self._thread.submit(partial(self._run, work)))

        def _run(self, work: Work) -> Any:
            result, failure = self.execute(work)
            if failure is not None:
                raise failure
            return result

        def stop(self) -> None:
            if self._thread.items:
                raise Blocked(60.0)
            self.disconnect()

    return SimulatedWriter


def make_heartbeat(world: "World") -> type[Heartbeat]:
    """Make the class of the heartbeat. It runs the real `beat` in the lane of the threads."""

    class SimulatedHeartbeat(Heartbeat):
        is_stopped = False

        def start(self) -> None:
            self._loop = asyncio.get_running_loop()
            self._simulated = SimulatedThread(world, current_process())
            world.loop.call_later(self.step, self._next, context=self._simulated.process.thread_lane.context)

        def _next(self) -> None:
            if self.is_stopped:
                return
            world.thread = self._simulated
            try:
                self.beat()
            except Crash:
                world.kill(self._simulated.process)
                return
            finally:
                world.thread = None
            world.loop.call_later(self.step, self._next, context=self._simulated.process.thread_lane.context)

        def stop(self) -> None:
            self.is_stopped = True
            self.connection.close()

    return SimulatedHeartbeat
