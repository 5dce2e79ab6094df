"""The world of one run: its processes, its clock, its database file and the faults at each statement."""

import asyncio
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import Clock
from proof.simulation.loop import Lane, SimulatedLoop, current_process
from proof.simulation.threads import Crash, SimulatedPool, SimulatedThread, WriteLock

if TYPE_CHECKING:
    from oncehook import Inbox
    from proof.simulation.scenario import Scenario

START = 1_790_000_000.0
"""The time at which every run starts, in seconds since the epoch."""

ATOMIC = frozenset({"BEGIN IMMEDIATE", "COMMIT", "ROLLBACK", "CONNECT"})
"""Statements, and the opening of a connection, that SQLite does completely or not at all."""

ERRORS = ("disk I/O error", "database is locked", "unable to open database file")


class Process:
    """A process of the service. It can be stopped for a while, its event loop can be blocked, and it can die."""

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.inbox: Inbox | None = None
        self.is_dead = False
        self.is_ready = False
        self.has_started = False
        self.connections: list[sqlite3.Connection] = []  # of the simulated driver
        self.loop_lane = Lane(loop, self)
        self.thread_lane = Lane(loop, self)

    def die(self) -> None:
        """Run no code of the process any more."""
        self.is_dead, self.is_ready = True, False
        self.loop_lane.die()
        self.thread_lane.die()

    def stop_until(self, moment: float) -> None:
        """Stop everything, as SIGSTOP does."""
        self.thread_lane.until = max(self.thread_lane.until, moment)
        self.block_until(moment)

    def block_until(self, moment: float) -> None:
        """Block the event loop, as a handler without `await` does. Threads continue."""
        self.loop_lane.until = max(self.loop_lane.until, moment)


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
        self.thread: SimulatedThread | None = None  # whose work runs now
        self._place = 0  # before, in or after a statement
        self.observer = observer

    # -- time -----------------------------------------------------------------------------------------------------

    def wall_time(self) -> float:
        return START + self.loop.now + self.clock_offset

    def latency(self) -> float:
        """How long the next work of a thread takes to start: mostly little, sometimes longer than a lease."""
        if self.has_faults and self.schedule.random() < self.scenario.slow:
            return self.schedule.uniform(0.5, 2 * self.scenario.lease)
        return self.schedule.uniform(0.0002, 0.01)

    @property
    def process(self) -> Process | None:
        """The process whose statements run now."""
        return None if self.thread is None else self.thread.process

    # -- processes ------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.now:9.3f} {text}".replace(str(self.path), "inbox.db"))

    def opened(self, connection: Any) -> None:
        process = current_process()
        if process is not None:
            process.connections.append(connection)

    def kill(self, process: Process) -> None:
        """Kill a process: its memory is lost, and the database rolls back its open transactions."""
        if not process.is_dead:
            self.note(f"{process.name} is killed")
            self.counts["kill"] += 1
        process.die()
        for connection in process.connections:
            connection.close()
        process.connections.clear()
        if self.lock.owner is not None and self.lock.owner.process is process:
            self.lock.owner = None

    def _run_in_executor(self, executor: Any, work: Any, *args: Any) -> Any:
        thread = executor.thread if isinstance(executor, SimulatedPool) else SimulatedThread(self, current_process())
        return thread.submit(lambda: work(*args))

    def last_change(self) -> int:
        """The number of the last committed change."""
        number: int = self.observer.execute("SELECT coalesce(max(id), 0) FROM trace").fetchone()[0]
        return number

    def close(self) -> None:
        """End the run: close all connections, and drop every process."""
        for process in (*self.processes, *self.graveyard):
            process.die()
            self.kill(process)
        self.loop.clear()
        self.loop.abandon_tasks()
        asyncio.tasks._all_tasks.clear()  # type: ignore[attr-defined]  # the next run has tasks of the same numbers

    # -- faults ---------------------------------------------------------------------------------------------------

    def before(self, sql: str) -> None:
        """Called before each statement of a process: it may fail, or its process may die."""
        kind = self._draw(sql)
        if kind is not None:
            self._inject(kind, "before", sql)
            self._fail(kind)

    def during(self, sql: str) -> Callable[[], bool] | None:
        """Called before each statement: returns what SQLite has to call while it runs, if it fails or dies there."""
        kind = None if sql in ATOMIC else self._draw(sql)
        return None if kind is None else self._interrupt(kind, sql)

    def after(self, sql: str) -> None:
        """Called after each statement: its reply may be lost, or its process may die."""
        kind = self._draw(sql)
        if kind is not None:
            self._inject(kind, "after", sql)
            self._fail(kind)

    def stop_if_dead(self) -> None:
        """End the work of a process that has died."""
        if self.thread is not None and self.thread.process.is_dead:
            raise Crash

    def _draw(self, sql: str) -> str | None:
        if self.thread is None:
            return None
        self.stop_if_dead()
        if not self.has_faults or sql.startswith("PRAGMA"):
            return None
        self._place += 1
        return self.scenario.fault_at(self._place, self.faults, is_starting=not self.thread.process.has_started)

    def _inject(self, kind: str, when: str, sql: str) -> None:
        """Count a fault, and let the process die if it is a crash."""
        assert self.process is not None
        place = sql.lower() if sql == "CONNECT" else sql if sql in ATOMIC else "statement"
        self.counts[f"{kind} {when} {place}"] += 1
        self.note(f"{self.process.name}: {kind} {when} {' '.join(sql.split())[:60]}  [place {self._place}]")
        if kind == "crash":
            self.process.die()
            self.note(f"{self.process.name} is killed")
            self.counts["kill"] += 1

    def _fail(self, kind: str) -> None:
        if kind == "crash":
            raise Crash
        raise sqlite3.OperationalError(f"simulated: {self.faults.choice(ERRORS)}")

    def _interrupt(self, kind: str, sql: str) -> Callable[[], bool]:
        is_due = True

        def interrupt() -> bool:
            nonlocal is_due
            was_due, is_due = is_due, False
            if was_due:
                self._inject(kind, "during", sql)
            return was_due

        return interrupt


def assert_single_thread() -> None:
    """Raise if a part of the inbox started a thread, whose order the seed would not decide."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("oncehook")]
    assert not names, f"threads that the simulation does not control: {names}"
