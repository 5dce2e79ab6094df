"""One run: senders and faults at the same time, then the check."""

import asyncio
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from proof.deliveries.kinds import MISDEEDS
from proof.deliveries.plan import Plan, make_plan
from proof.deliveries.processes import UNEXPECTED
from proof.deliveries.schedule import Schedule
from proof.deliveries.senders import Answers, Traffic
from proof.deliveries.verdict import UNFINISHED, problems_of
from proof.deliveries.world import World, make_world
from tests.support.servers import run_sql

T = TypeVar("T")
DEADLOCKS = "SELECT count(*) FROM webhook_attempts WHERE error LIKE '%deadlock%'"
SETTLE_SECONDS = 180.0
"""How long events may take to be processed after the last fault."""

MAX_TRACEBACK = 6_000
"""How many characters of a traceback a failed run shows."""


@dataclass
class Options:
    database: str
    deliveries: int
    seed: int
    rate: float
    kinds: frozenset[str]
    kills: int | None = None
    """The run only kills PostgreSQL, at least this many times."""

    @property
    def name(self) -> str:
        """The name of its result."""
        if self.kills is not None:
            return "database-kills"
        return "deliveries" if self.database == "postgres" else "deliveries-sqlite"


@dataclass
class Outcome:
    """The figures of a run, and the violations that were found."""

    options: Options
    plan: Plan
    answers: Answers
    applied: dict[str, int]
    exits: Counter[str]
    unanswered: int
    problems: list[str]
    seconds: float


async def run(options: Options, say: Callable[[str], None]) -> Outcome:
    """Deliver everything under faults, let the inbox finish, and check the result."""
    began = time.monotonic()
    plan = make_plan(options.seed, options.deliveries, misdeeds_of(options))
    async with make_world(options.database) as world:
        await _until_ready(world)
        traffic = Traffic(plan, world, options.rate, leaves="F6" in options.kinds)
        schedule = Schedule(traffic, options.kinds, options.kills or 1, say)
        faults = asyncio.create_task(schedule.run())
        progress = asyncio.create_task(_report(traffic, say))
        try:
            await traffic.run()
            await faults
        finally:
            progress.cancel()
            faults.cancel()
        await _until_finished(world, say)
        problems = [
            *_unexpected(world),
            *(await _stop(world)),
            *(await asyncio.to_thread(problems_of, world, plan, traffic.answers)),
        ]
        counts = schedule.applied + _in_traffic(world, traffic.answers)
        exits = sum((slot.exits for slot in world.slots), Counter[str]())
        unanswered = world.proxy.unanswered if world.proxy else 0
        if problems:
            for slot in world.slots:
                say(f"the log of {slot.name} ends with:\n{slot.log.read_text(errors='replace')[-1500:]}")
    applied = {kind: counts[kind] for kind in sorted(counts, key=lambda kind: int(kind[1:]))}
    seconds = time.monotonic() - began
    return Outcome(options, plan, traffic.answers, applied, exits, unanswered, problems, seconds)


def misdeeds_of(options: Options) -> frozenset[str]:
    names = {name for kind, misdeeds in MISDEEDS.items() if kind in options.kinds for name in misdeeds}
    return frozenset(names - {"deadlock", "serialization"} if options.database == "sqlite" else names)


def _in_traffic(world: World, answers: Answers) -> Counter[str]:
    """How often handlers misbehaved and clients disconnected, by kind of fault."""
    counts = Counter(world.misdeeds.read_text().split() if world.misdeeds.exists() else [])
    counts["deadlock"] = run_sql(world.database, DEADLOCKS)[0][0]
    applied = Counter({kind: sum(counts[name] for name in misdeeds) for kind, misdeeds in MISDEEDS.items()})
    return applied + Counter({"F6": answers.left})


async def _until_ready(world: World) -> None:
    for slot in world.slots:
        while slot.process is None or (slot.is_server and slot.port is None):
            await asyncio.sleep(0.05)


async def _report(traffic: Traffic, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(10)
        answers = traffic.answers
        say(
            f"{traffic.done:,} of {len(traffic.plan.deliveries):,} deliveries acked, "
            f"{sum(answers.refused.values()):,} answered with an error, {answers.ambiguous:,} ambiguous"
        )


async def _until_finished(world: World, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while (waiting := run_sql(world.database, UNFINISHED)[0][0]) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    say(f"{waiting:,} events are unfinished" if waiting else "every event is processed")


async def _stop(world: World) -> list[str]:
    codes = dict(
        zip([s.name for s in world.slots], await asyncio.gather(*(s.stop() for s in world.slots)), strict=True)
    )
    return [f"{name} ended with {code} at SIGTERM" for name, code in codes.items() if code]


def _unexpected(world: World) -> Iterator[str]:
    for slot in world.slots:
        printed = re.sub(r"(?m)^\{.*\n?", "", slot.log.read_text(errors="replace"))  # what is not a log line
        _, found, traceback = printed.partition("Traceback (most recent call last)")
        if found:
            yield f"{slot.name} printed a traceback:\n{found}{traceback[:MAX_TRACEBACK]}"
        yield from (
            f"{slot.name} {reason}, {count} times" for reason, count in slot.exits.items() if UNEXPECTED in reason
        )


def say_to_people(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def run_program(work: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end. SIGINT and SIGTERM end its processes and servers too."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
