"""Drives processes that crash at a named point, and checks what a process after them makes of their work."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from oncehook.config.settings import Settings
from oncehook.model.claim import Claim
from oncehook.store import make_store
from oncehook.testing.crash_points import CRASH_POINTS, CrashPoint
from tests.faults.crash_process import Work, main
from tests.support.ages import set_age
from tests.support.counts import count
from tests.support.events import make_claim, stripe_body, stripe_headers
from tests.support.forks import forks
from tests.support.fsck import assert_fsck_is_clean
from tests.support.serve import parse_head, request
from tests.support.servers import run_sql
from tests.support.waiting import eventually

AT_POINT = {
    "kill": "processes killed with SIGKILL at a crash point",
    "cancel": "tasks cancelled at a crash point",
    "disconnect": "sessions of PostgreSQL ended at a crash point",
}
PARTIAL_BODY = "R1"
EVENTS = ("evt_1", "evt_2", "evt_retry", "evt_slow", "evt_dead")
UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status NOT IN ('processed', 'failed', 'ignored')"
OPEN_EFFECTS = "SELECT count(*) FROM webhook_effects WHERE status <> 'done'"


def points_on(database: str) -> list[CrashPoint]:
    """The points that exist on a database."""
    dialect = "sqlite" if database.startswith("sqlite") else "postgres"
    return [point for point in CRASH_POINTS if not isinstance(point.where(dialect), str)]


class CrashProcess:
    """A process with a crash point or without one.

    It is a fork of a process that has imported everything, which takes a tenth of the time of a new interpreter.
    """

    def __init__(self, database: str, folder: Path, part: str, point: str | None = None, fault: str = "kill") -> None:
        work = Work(database, folder, part, point, fault)
        self.reached, self.point = work.reached, point
        ready, child = forks().Pipe(duplex=False)
        self.process = forks().Process(target=main, args=(work, child))
        self.process.start()
        child.close()
        with ready, suppress(EOFError):  # it ended: its work was an operation, or its point was before
            self.port: int | None = None
            self.port = ready.recv()

    async def ended(self, within: float = 60.0) -> int:
        """Wait for the end of the process, and return its exit code."""
        await eventually(lambda: not self.process.is_alive(), "the process reaches its point", within=within)
        return self.close()

    def close(self) -> int:
        """End the process if it runs."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    async def stop(self) -> int:
        """Stop the process as an orchestrator does."""
        if self.process.is_alive():
            self.process.terminate()
        return await self.ended()


@dataclass
class Sender:
    """The sender's side: the bodies that were sent, and those that were acked."""

    seed: int = 0
    bodies: dict[str, bytes] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for event_id in random.Random(self.seed).sample(EVENTS, len(EVENTS)):
            kind = "dead.letter" if event_id == "evt_dead" else "invoice.paid"
            self.bodies[event_id] = stripe_body(event_id, kind, filler="x" * 3000)

    async def deliver(self, port: int | None, is_half_read: Callable[[], bool] | None = None) -> None:
        """Deliver every event that is not acked. With `is_half_read`, the rest of each body waits for it."""
        for event_id in self.bodies:
            if event_id not in self.acked and port is not None:
                await self._deliver(port, event_id, is_half_read)

    async def _deliver(self, port: int, event_id: str, is_half_read: Callable[[], bool] | None) -> None:
        body = self.bodies[event_id]
        data = request("/webhooks/stripe", stripe_headers(body, "whsec_test"), body)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        try:
            writer.write(data[:-1000])
            await writer.drain()
            if is_half_read is not None:
                await eventually(is_half_read, "the process has read a part of the body", within=60)
            writer.write(data[-1000:])
            await writer.drain()
            async with asyncio.timeout(30):
                status, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(headers["content-length"]))
            if status in (200, 202):
                self.acked.add(event_id)
            else:  # uvicorn answers 500 for a task that was cancelled
                assert status in (500, 503), f"{event_id} got {status}"
        except (OSError, asyncio.IncompleteReadError):
            pass  # no complete response: the event is sent again
        finally:
            writer.transport.abort()

    def claims(self) -> list[Claim]:
        """The events as the receiver would store them."""
        return [
            make_claim(event_id, type="dead.letter" if event_id == "evt_dead" else "invoice.paid", body=body)
            for event_id, body in self.bodies.items()
        ]


async def fill(database: str, sender: Sender, part: str) -> None:
    """Store all events, and bring them into the state in which a part begins."""
    store = make_store(Settings(database=database))
    await store.open()
    try:
        await store.claims.insert(sender.claims())
        sender.acked.update(EVENTS)
        if part == "rescue":
            await store.leases.take(10, 0.01, "gone")
    finally:
        await store.close()


async def finish(database: str, folder: Path, sender: Sender) -> None:
    """Start a process without a crash point, deliver what is not acked, and wait until everything is done."""
    heir = CrashProcess(database, folder, "serve")
    try:
        while len(sender.acked) < len(EVENTS):
            await sender.deliver(heir.port)
        for statement in (UNFINISHED, OPEN_EFFECTS):
            await eventually(lambda: run_sql(database, statement) == [(0,)], statement, within=60)  # noqa: B023
        assert await heir.stop() == 0, "the process after the crash ends cleanly"
    finally:
        heir.close()


def assert_each_event_was_handled_once(database: str, folder: Path, sender: Sender, repeat: str) -> None:
    """Each acked event is stored once with its bytes, was applied once for each run, and had its effect."""
    rows = run_sql(database, "SELECT r.event_id, r.status, r.replays, p.body FROM webhook_receipts r "
                             "LEFT JOIN webhook_payloads p ON p.receipt_id = r.id")  # fmt: skip
    receipts = {event_id: (status, replays, body) for event_id, status, replays, body in rows}
    assert len(rows) == len(receipts), f"an event has two receipts. {repeat}"
    lost = {event_id for event_id in sender.acked if receipts.get(event_id, (0, 0, b""))[2] != sender.bodies[event_id]}
    assert not lost, f"acked and lost: {lost}. {repeat}"
    applied = Counter(event_id for (event_id,) in run_sql(database, "SELECT event_id FROM ledger"))
    runs = {event_id: replays + 1 for event_id, (status, replays, _) in receipts.items() if status == "processed"}
    assert applied == runs, f"work was not applied exactly once. {repeat}"
    assert {event_id for event_id in receipts if event_id not in runs} <= {"evt_dead"}, f"not handled. {repeat}"
    calls = [line.split() for line in (folder / "effects").read_text().splitlines()]
    assert {event_id for _, event_id in calls} == runs.keys(), f"an effect did not run. {repeat}"
    assert len({key for key, _ in calls}) == len(runs), f"an effect ran with two idempotency keys. {repeat}"


def repeat_command(database: str, point: str, fault: str, seed: int) -> str:
    """The command that repeats a run."""
    kind = "sqlite" if database.startswith("sqlite") else "postgres"
    test = "tests/faults/test_crash_points.py::test_crash_at_every_point"
    return f"Repeat: pytest --torture '{test}[{kind}-{fault}-{point}-{seed}]'"


def make_ledger(database: str) -> None:
    run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL)")


async def crash_at(database: str, folder: Path, point: CrashPoint, fault: str = "kill", seed: int = 0) -> None:
    """Crash a process at one point, let another process go on, and check everything."""
    repeat = repeat_command(database, point.name, fault, seed)
    sender = Sender(seed)
    if point.part in ("receive", "work", "rescue", "relay"):
        make_ledger(database)
        if point.part != "receive":
            await fill(database, sender, point.part)
        crashed = CrashProcess(database, folder, "serve", point.name, fault)
        await _until_crashed(crashed, sender, fault, repeat)
        await finish(database, folder, sender)
        assert_each_event_was_handled_once(database, folder, sender, repeat)
    else:
        await _crash_operation(database, folder, point, fault, sender, repeat)
    assert_fsck_is_clean(database, repeat)
    count(AT_POINT[fault])


async def crash_in_turn(database: str, folder: Path, points: Sequence[str]) -> None:
    """Crash a process at each point in turn, each on what the one before left. The last process has no point."""
    sender, repeat = Sender(), f"The points were {', '.join(points)}."
    make_ledger(database)
    for point in points:
        crashed = CrashProcess(database, folder, "serve", point)
        await _until_crashed(crashed, sender, "kill", repeat)
    await finish(database, folder, sender)
    assert_each_event_was_handled_once(database, folder, sender, repeat)


async def _until_crashed(crashed: CrashProcess, sender: Sender, fault: str, repeat: str) -> None:
    try:
        if len(sender.acked) < len(EVENTS):
            await sender.deliver(crashed.port, crashed.reached.exists if crashed.point == PARTIAL_BODY else None)
        await eventually(crashed.reached.exists, f"the point is reached. {repeat}", within=60)
        if fault == "disconnect":  # the process goes on
            assert await crashed.stop() == 0, repeat
            return
        code = await crashed.ended()
        assert code == (-signal.SIGKILL if fault == "kill" else 0), f"the process ended with {code}. {repeat}"
    finally:
        crashed.close()


async def _crash_command(database: str, folder: Path, point: CrashPoint, fault: str, repeat: str) -> None:
    crashed = CrashProcess(database, folder, point.part, point.name, fault)
    code = await crashed.ended()
    assert crashed.reached.exists(), f"the point was not reached. {repeat}"
    assert code == -signal.SIGKILL or fault != "kill", f"the process ended with {code}. {repeat}"


async def _crash_operation(
    database: str, folder: Path, point: CrashPoint, fault: str, sender: Sender, repeat: str
) -> None:
    if point.part == "migrate":
        await _crash_command(database, folder, point, fault, repeat)
        assert await CrashProcess(database, folder, "migrate").ended() == 0, repeat
        make_ledger(database)
        await finish(database, folder, sender)
        assert_each_event_was_handled_once(database, folder, sender, repeat)
        return
    make_ledger(database)
    await fill(database, sender, point.part)
    await finish(database, folder, sender)
    if point.part == "prune":
        set_age(database, "evt_1", 40)
        set_age(database, "evt_2", 20)
    await _crash_command(database, folder, point, fault, repeat)
    run_sql(database, "UPDATE webhook_leaders SET expires_at = taken_at")  # as after PRUNE_TERM
    assert await CrashProcess(database, folder, point.part).ended() == 0, repeat
    if point.part == "replay":
        await finish(database, folder, sender)
        assert_each_event_was_handled_once(database, folder, sender, repeat)
        return
    left = {event_id for (event_id,) in run_sql(database, "SELECT event_id FROM webhook_receipts")}
    assert left == set(EVENTS) - {"evt_1"}, repeat
