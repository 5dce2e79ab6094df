"""Runs one seed: starts processes, delivers events, injects faults, and checks the invariants."""

import asyncio
import gc
import logging
import random
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import oncehook.runtime
import oncehook.store.sqlite.file
import oncehook.store.sqlite.handler
import oncehook.store.sqlite.heartbeat
import oncehook.store.sqlite.session
from oncehook.concurrency.clock import SYSTEM
from oncehook.model.errors import OncehookError
from proof.simulation.database import Machine
from proof.simulation.invariants import (
    InvariantViolated,
    assert_at_ack,
    assert_at_end,
    assert_now,
    assert_pruned,
    is_quiet,
    require,
)
from proof.simulation.loop import LANE, Stuck
from proof.simulation.scenario import Scenario
from proof.simulation.service import WINDOW, Service, signed_delivery
from proof.simulation.threads import SimulatedPool, make_heartbeat, make_writer
from proof.simulation.world import Process, World, assert_single_thread

RECOVERY = 400.0
"""Every event and effect must end within this many simulated seconds after the last fault."""


@dataclass
class Run:
    """The result of a seed."""

    seed: int
    failure: str | None
    log: list[str]
    counts: dict[str, int]
    faults: dict[int, str]
    trace: list[dict[str, Any]] = field(default_factory=list)
    acks: list[tuple[int, str]] = field(default_factory=list)  # (last change before it, event)
    answers: list[tuple[int, str, str]] = field(default_factory=list)  # (last change before it, process, event)
    seconds: float = 0.0  # simulated


@cache
def machine() -> Machine:
    return Machine()


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Replace the clock, the threads and the driver of the real code by simulated ones."""
    with ExitStack() as stack:
        for module in ("file", "heartbeat", "session"):
            stack.enter_context(
                patch.object(sys.modules[f"oncehook.store.sqlite.{module}"], "sqlite3", machine().driver)
            )
        stack.enter_context(patch.object(oncehook.store.sqlite.file, "Writer", make_writer(world)))
        stack.enter_context(
            patch.object(oncehook.store.sqlite.handler, "ThreadPoolExecutor", lambda *_, **__: SimulatedPool(world))
        )
        stack.enter_context(patch.object(oncehook.runtime, "Heartbeat", make_heartbeat(world)))
        stack.enter_context(patch.object(SYSTEM, "now", world.clock.now))
        stack.enter_context(patch.object(SYSTEM, "monotonic", world.clock.monotonic))
        stack.enter_context(patch("secrets.token_hex", lambda size: f"{world.values.getrandbits(8 * size):x}"))
        stack.enter_context(patch("asyncio.all_tasks", lambda loop=None: set()))
        yield


def run_seed(seed: int, *, only: frozenset[int] | None = None, with_trace: bool = False) -> Run:
    """Run a seed and return its result."""
    scenario = Scenario(seed, only)
    random.seed(seed)
    world = World(scenario, machine().path, machine().observer)
    machine().start(world)
    driver = Driver(world)
    failure: str | None = None
    was_disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        with simulated(world):
            try:
                world.loop.run_until_complete(driver.run())
                assert_single_thread()
                require(not world.loop.errors, f"an error escaped from a task: {world.loop.errors[:1]}")
            except InvariantViolated as violated:
                failure = str(violated)
            except Stuck as stuck:
                failure = f"I5: {stuck}"
            trace = driver.trace() if with_trace else []
            seconds = world.loop.now
            world.close()
    finally:
        logging.disable(was_disabled)
        gc.enable()
    world.note(f"ended: {failure or 'every invariant holds'}")
    return Run(
        seed,
        failure,
        world.log,
        dict(world.counts),
        scenario.drawn,
        trace,
        driver.acks,
        driver.service.answers,
        seconds,
    )


class Driver:
    """The sender, the operators and the supervisor of the processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = world.scenario
        self.rng = random.Random(f"{world.scenario.seed} driver")  # noqa: S311  # repeats a run, guards no secret
        self.service = Service(world, world.lock)
        self.acked: set[str] = set()
        self.acks: list[tuple[int, str]] = []
        self.accepted: list[str] = []
        self._sent: set[str] = set()
        self._started = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.failure: InvariantViolated | None = None

    # -- the run --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        for _ in range(self.scenario.processes):
            self._start()
        self._spawn(self._supervise())
        for delivery in self.scenario.deliveries:
            self._at(delivery.at, self._deliver, self.scenario.events[delivery.event])
        for at, seconds in self.scenario.clock_jumps:
            self._at(at, self._jump, seconds)
        for at in self.scenario.replays:
            self._at(at, self._replay)
        for at in self.scenario.prunes:
            self._at(at, self._prune)
        for at in self.scenario.stops:
            self._at(at, self._stop)
        for at in self.scenario.pauses:
            self._at(at, self._pause)
        await asyncio.sleep(self.scenario.horizon)
        self.world.has_faults = False
        self.world.note("faults stop")
        await self._redeliver()
        await self._until_quiet()
        assert_at_end(self)
        if self.scenario.prunes_at_end:
            await self._prune_at_end()

    def _at(self, moment: float, work: Any, *args: Any) -> None:
        self.world.loop.call_later(moment, work, *args)

    def _spawn(self, work: Coroutine[Any, Any, Any], process: Process | None = None) -> "asyncio.Task[Any]":
        task = self.world.loop.create_task(work, context=self._context_of(process))
        task.add_done_callback(self._task_done)
        self._tasks.append(task)
        return task

    def _context_of(self, process: Process | None) -> Context:
        context = copy_context()
        context.run(LANE.set, self.world.loop.outside if process is None else process.loop_lane)
        return context

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or InvariantViolated(f"a step of the simulation failed: {task.exception()!r}")

    def check(self, assertion: Any, *args: Any) -> None:
        """Check an invariant in a callback, and end the run if it is violated."""
        try:
            assertion(self, *args)
        except InvariantViolated as violated:
            self.failure = self.failure or violated

    # -- processes ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._started += 1
        process = Process(f"p{self._started}", self.world.loop)
        self.world.processes.append(process)
        self._spawn(self._run_process(process), process)

    async def _run_process(self, process: Process) -> None:
        try:
            process.inbox = self.service.make_inbox()
            await process.inbox.start()
            process.is_ready = process.has_started = True
            self.world.note(f"{process.name} is ready")
        except OncehookError as error:  # the supervisor starts another one
            self.world.note(f"{process.name} cannot start: {error}")
            self.world.kill(process)

    async def _supervise(self) -> None:
        """Start a process for each that died, and check the invariants after each death."""
        while True:
            await asyncio.sleep(0.25)
            if self.failure is not None:
                return
            dead = [process for process in self.world.processes if process.is_dead]
            for process in dead:
                self.world.kill(process)
                self.world.processes.remove(process)
                self.world.graveyard.append(process)
                self.check(assert_now)
            while len(self.world.processes) < self.scenario.processes:
                self._start()

    def _any_process(self) -> Process | None:
        ready = [process for process in self.world.processes if process.is_ready]
        return self.rng.choice(ready) if ready else None

    # -- the sender -----------------------------------------------------------------------------------------------

    def _deliver(self, event: str) -> None:
        process = self._any_process()
        if process is None:
            return
        if event in self._sent:
            self.world.counts["duplicate delivery"] += 1
        elif any(event < other for other in self._sent):
            self.world.counts["reordered event"] += 1
        self._sent.add(event)
        task = self._spawn(self._send(process, event), process)
        if self.world.has_faults and self.rng.random() < self.scenario.disconnect:
            self._at(self.rng.uniform(0.0, 0.05), self._disconnect, task, event)

    def _disconnect(self, task: "asyncio.Task[Any]", event: str) -> None:
        """Cancel a request, as a server does whose client has gone away."""
        if task.cancel():
            self.world.counts["client disconnect"] += 1
            self.world.note(f"the sender of {event} goes away")

    async def _send(self, process: Process, event: str) -> None:
        assert process.inbox is not None
        receiver = process.inbox._runtime.reception.receiver
        status, body, _ = await receiver.receive("stripe", signed_delivery(event, self.world.wall_time()))
        self.world.counts[f"response {status}"] += 1
        if b'"accepted"' in body:
            self.accepted.append(event)
        if self.world.has_faults and self.rng.random() < self.scenario.lost:
            self.world.counts["lost response"] += 1
            self.world.note(f"{process.name}: {event} → {status}, which is lost")
            return
        self.world.note(f"{process.name}: {event} → {status}")
        if 200 <= status < 300:
            self.acked.add(event)
            self.acks.append((self.world.last_change(), event))
            self.check(assert_at_ack, event)

    async def _redeliver(self) -> None:
        """Deliver every event until it has an ack, as a sender that retries does: every 5 s, and 60 times at most."""
        for step in range(600):
            if self.failure is not None:
                raise self.failure
            missing = [event for event in self.scenario.events if event not in self.acked]
            if not missing:
                return
            if step % 10 == 0:
                for event in missing:
                    self._deliver(event)
            await asyncio.sleep(0.5)
        raise InvariantViolated(f"I5: after the last fault, {missing} got no 2xx in 300 s")

    async def _until_quiet(self) -> None:
        deadline = self.world.loop.now + RECOVERY
        while self.world.loop.now < deadline:
            if self.failure is not None:
                raise self.failure
            if is_quiet(self):
                return
            await asyncio.sleep(0.5)
        raise InvariantViolated(f"I5: {RECOVERY:g} s after the last fault, some events have not ended: {self.rows()}")

    # -- operators and faults -------------------------------------------------------------------------------------

    def _jump(self, seconds: float) -> None:
        self.world.note(f"the clock jumps by {seconds:+g} s")
        self.world.counts["clock jump"] += 1
        self.world.clock_offset += seconds

    def _replay(self) -> None:
        process = self._any_process()
        if process is not None:
            self._spawn(self._replay_some(process), process)

    async def _replay_some(self, process: Process) -> None:
        assert process.inbox is not None
        event = self.rng.choice(self.scenario.events)
        try:
            replayed = await process.inbox.replay(event, actor="simulation")
        except Exception as error:
            self.world.note(f"{process.name}: replay of {event} failed: {type(error).__name__}")
        else:
            self.world.counts["replay"] += replayed.count
            self.world.note(f"{process.name}: replay of {event} queued {replayed.count}")

    def _prune(self) -> None:
        process = self._any_process()
        if process is not None:
            self._spawn(self._prune_now(process), process)

    async def _prune_now(self, process: Process) -> None:
        assert process.inbox is not None
        try:
            await process.inbox.prune()
        except Exception as error:
            self.world.note(f"{process.name}: prune failed: {type(error).__name__}")

    async def _prune_at_end(self) -> None:
        """Prune inside the window, and again after it."""
        for offset, is_past in ((WINDOW * 0.6, False), (WINDOW, True)):
            self.world.clock_offset += offset
            await asyncio.sleep(1.0)
            process = self._any_process()
            if process is None:
                return
            before = self.rows()
            await self.world.loop.create_task(self._prune_now(process), context=self._context_of(process))
            assert_pruned(self, before, is_past=is_past)
            self.world.counts["pruned receipts"] += len(before) - len(self.rows())

    def _stop(self) -> None:
        process = self._any_process()
        if process is not None:
            process.is_ready = False
            self._spawn(self._stop_process(process), process)

    async def _stop_process(self, process: Process) -> None:
        assert process.inbox is not None
        self.world.note(f"{process.name} gets SIGTERM")
        self.world.counts["graceful stop"] += 1
        try:
            await process.inbox.stop()
        except Exception as error:
            self.world.note(f"{process.name} stops with {type(error).__name__}: {error}")
        self.world.note(f"{process.name} has stopped")
        process.die()

    def _pause(self) -> None:
        process = self._any_process()
        if process is not None:
            self.world.note(f"{process.name} gets SIGSTOP")
            self.world.counts["SIGSTOP"] += 1
            process.stop_until(self.world.loop.now + self.rng.uniform(0.5, 3.0) * self.scenario.lease)

    # -- what it sees ---------------------------------------------------------------------------------------------

    def rows(self) -> list[tuple[Any, ...]]:
        sql = "SELECT event_id, consumer, status, attempts, replays FROM webhook_receipts ORDER BY id"
        return [tuple(row) for row in self.world.observer.execute(sql)]

    def trace(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.world.observer.execute("SELECT * FROM trace ORDER BY id")]
