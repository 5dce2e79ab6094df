"""The world of one run: its processes, its clock, its database file and the faults at each statement."""

import asyncio
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import Clock
from proof.simulation.loop import IN_THREAD, PROCESS, SimulatedLoop
from proof.simulation.threads import Crash, SimulatedPool, SimulatedThread, WriteLock

if TYPE_CHECKING:
    from oncehook import Inbox
    from proof.simulation.scenario import Scenario

START = 1_790_000_000.0
"""The time at which every run starts, in seconds since the epoch."""

ERRORS = ("disk I/O error", "database is locked", "unable to open database file")


class Process:
    """A process of the service. It can be stopped for a while, its event loop can be blocked, and it can die."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: Inbox | None = None
        self.is_dead = False
        self.is_ready = False
        self.connections: list[sqlite3.Connection] = []
        self._stopped_until = self._blocked_until = 0.0

    def stop_until(self, moment: float) -> None:
        """Stop everything, as SIGSTOP does."""
        self._stopped_until = max(self._stopped_until, moment)

    def block_until(self, moment: float) -> None:
        """Block the event loop, as a handler without `await` does. Threads continue."""
        self._blocked_until = max(self._blocked_until, moment)

    def stopped_until(self, in_thread: bool) -> float:
        return self._stopped_until if in_thread else max(self._stopped_until, self._blocked_until)


class SimulatedClock(Clock):
    """The clock of a run."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def now(self) -> float:
        return self.world.wall_time()

    def monotonic(self) -> float:
        return self.world.loop.now


class World:
    """One run of a scenario."""

    def __init__(self, scenario: "Scenario", path: Path, observer: sqlite3.Connection) -> None:
        self.scenario = scenario
        self.path = path
        self.schedule = random.Random(f"{scenario.seed} schedule")  # noqa: S311  # repeats a run, guards no secret
        self.faults = random.Random(f"{scenario.seed} faults")  # noqa: S311  # as above
        self.values = random.Random(f"{scenario.seed} values")  # noqa: S311  # as above
        self.loop = SimulatedLoop(self.schedule)
        self.loop.executor = self._run_in_executor
        self.clock = SimulatedClock(self)
        self.clock_offset = 0.0
        self.lock = WriteLock(self)
        self.processes: list[Process] = []
        self.graveyard: list[Process] = []  # kept, so that Python does not finish the coroutines of dead processes
        self.has_faults = True
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.process: Process | None = None  # whose work runs now
        self.thread: SimulatedThread | None = None
        self._statement = 0
        self.observer = observer

    # -- time -----------------------------------------------------------------------------------------------------

    def wall_time(self) -> float:
        return START + self.loop.now + self.clock_offset

    def latency(self) -> float:
        """How long the next work of a thread takes to start: mostly little, sometimes longer than a lease."""
        if self.has_faults and self.schedule.random() < self.scenario.slow:
            return self.schedule.uniform(0.5, 2 * self.scenario.lease)
        return self.schedule.uniform(0.0002, 0.01)

    # -- processes ------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.now:9.3f} {text}".replace(str(self.path), "inbox.db"))

    @contextmanager
    def executing(self, thread: SimulatedThread) -> Iterator[None]:
        """Run work of a thread: its statements can fail."""
        before = self.process, self.thread
        self.process, self.thread = thread.process, thread
        try:
            yield
        finally:
            self.process, self.thread = before

    def opened(self, connection: sqlite3.Connection) -> None:
        process = PROCESS.get()
        if process is not None:
            process.connections.append(connection)

    def kill(self, process: Process) -> None:
        """Kill a process: its memory is lost, and the database rolls back its open transactions."""
        if not process.is_dead:
            self.note(f"{process.name} is killed")
            self.counts["kill"] += 1
        process.is_dead, process.is_ready = True, False
        for connection in process.connections:
            connection.close()
        process.connections.clear()  # another process may use them next
        if self.lock.owner is not None and self.lock.owner.process is process:
            self.lock.owner = None

    def _run_in_executor(self, executor: Any, work: Any, *args: Any) -> Any:
        thread = executor.thread if isinstance(executor, SimulatedPool) else SimulatedThread(self, PROCESS.get())
        return thread.submit(lambda: work(*args))

    def last_change(self) -> int:
        """The number of the last committed change."""
        number: int = self.observer.execute("SELECT coalesce(max(id), 0) FROM trace").fetchone()[0]
        return number

    def close(self) -> None:
        """End the run: close all connections, and let go of every process."""
        for process in (*self.processes, *self.graveyard):
            process.is_dead = True
            self.kill(process)
        self.loop.lanes.clear()
        self.loop.abandon_tasks()
        asyncio.tasks._all_tasks.clear()  # type: ignore[attr-defined]  # the next run has tasks of the same numbers

    # -- faults ---------------------------------------------------------------------------------------------------

    def before(self, sql: str) -> None:
        """Called before each statement of a process: it may fail, or its process may die."""
        self._at(sql, "before")

    def after(self, sql: str) -> None:
        """Called after each statement: its reply may be lost, or its process may die."""
        self._at(sql, "after")

    def _at(self, sql: str, when: str) -> None:
        process = self.process
        if process is None or process.is_dead or not self.has_faults or sql.startswith("PRAGMA"):
            return
        self._statement += 1
        kind = self.scenario.fault_at(self._statement, self.faults)
        if kind is None:
            return
        self.counts[f"{kind} {when} {'COMMIT' if sql == 'COMMIT' else 'statement'}"] += 1
        self.note(f"{process.name}: {kind} {when} {' '.join(sql.split())[:60]}  [statement {self._statement}]")
        if kind == "crash":
            process.is_dead = True
            self.note(f"{process.name} is killed")
            self.counts["kill"] += 1
            raise Crash
        raise sqlite3.OperationalError(f"simulated: {self.faults.choice(ERRORS)}")


def assert_single_thread() -> None:
    """Raise if a part of the inbox started a thread, whose order the seed would not decide."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("oncehook")]
    assert not names, f"threads that the simulation does not control: {names}"


__all__ = ["IN_THREAD", "PROCESS", "Process", "SimulatedClock", "World", "assert_single_thread"]
