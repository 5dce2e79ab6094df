"""A source moves between two shards under load, with real processes. The mover is killed: nothing is lost or doubled.

Two `oncehook serve` processes with workers receive events over HTTP from senders that repeat themselves. Each handler
writes a row in the database of its event, and requests an effect that writes a row without any constraint.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.counts import Repetitions
from tests.support.events import stripe_headers
from tests.support.recording_senders import Ledger, send
from tests.support.serve import Process
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, shard_databases, stripe_sources
from tests.support.waiting import eventually, let_time_pass, pause_at_random

pytestmark = pytest.mark.anyio

SENDERS, SENDER_SECONDS = 3, 0.03
"""Connections to each process, and the time between two deliveries of each."""

APP = """
import asyncpg
from oncehook import Inbox

inbox = Inbox()


@inbox.effect
async def note(effect, event_id):
    connection = await asyncpg.connect("MAIN")
    try:
        await connection.execute("INSERT INTO sent (event_id) VALUES ($1)", event_id)
    finally:
        await connection.close()


@inbox.on("stripe", "*")
async def handle(event, tx):
    await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", event.id)
    if event.id.endswith("0"):
        await event.effect(f"note-{event.id}", note, event_id=event.id)
"""


class PatientLedger(Ledger):
    """Senders that deliver an event again after a 503, as providers do."""

    unavailable = 0

    async def record(self, event_id: str, status: int, body: bytes) -> None:
        if status == 503:
            self.unavailable += 1
            self.unknown.append(event_id)
        else:
            await super().record(event_id, status, body)
        await let_time_pass(SENDER_SECONDS)


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a") as made:
        made.create_ledgers()
        run_sql(made.addresses["main"], "CREATE TABLE sent (event_id text)")
        (tmp_path / "hooks.py").write_text(APP.replace("MAIN", made.addresses["main"]))
        made.write(sources=stripe_sources("stripe"), top='log_level = "error"\nconcurrency = 4')
        yield made


@contextmanager
def services(folder: Path, number: int = 2) -> Iterator[list[Process]]:
    """Processes that receive and handle."""
    started: list[Process] = []
    try:
        for _ in range(number):
            started.append(Process(folder / "oncehook.toml", "--no-dashboard", app="hooks:inbox", cwd=folder))
        yield started
    finally:
        for service in started:
            service.kill()


@asynccontextmanager
async def load(services: list[Process]) -> AsyncIterator[PatientLedger]:
    ledger = PatientLedger(random.randrange(2**32))
    sending = [asyncio.create_task(send(ledger, service.port)) for service in services for _ in range(SENDERS)]
    try:
        yield ledger
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def mover(folder: Path, to: str, step: str = "") -> "subprocess.Popen[str]":
    """A process that moves the source, and kills itself at a step."""
    command = [sys.executable, "-m", "tests.faults.shard_mover", str(folder / "oncehook.toml"), "stripe", to, step]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def run_mover(folder: Path, to: str, step: str = "") -> tuple[int, str, str]:
    """Run a mover to its end, and return its exit code and what it printed."""
    process = mover(folder, to, step)
    out, error = await asyncio.to_thread(process.communicate)
    return process.returncode, out, error


async def deliver_the_rest(ledger: PatientLedger, port: int) -> None:
    """Deliver every event without an ack again, until it has one."""
    async with httpx.AsyncClient(verify=False, base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for event_id in sorted(set(ledger.bodies) - ledger.acked):
            while event_id not in ledger.acked and not ledger.odd:
                body = ledger.bodies[event_id]
                answer = await client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
                await ledger.record(event_id, answer.status_code, answer.content)


async def assert_once(databases: ShardDatabases, ledger: PatientLedger, home: str) -> None:
    """Every acked event has one receipt, in the new shard; was handled once; and had its effect once."""
    seed = f"repeat with PatientLedger({ledger.seed})"
    assert not ledger.odd, f"{ledger.odd[:3]}: {seed}"
    unfinished = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"
    effects = "SELECT count(*) FROM webhook_effects WHERE status <> 'done'"
    await eventually(
        lambda: databases.rows(home, unfinished) == [(0,)] and databases.rows(home, effects) == [(0,)],
        "every event is processed",
        within=60,
    )
    other = "main" if home == "a" else "a"
    phases = {
        shard: databases.rows(shard, "SELECT phase, from_shard, to_shard FROM webhook_moves") for shard in ("main", "a")
    }
    assert databases.events(other) == [], f"{phases}: {seed}"
    stored = dict(
        databases.rows(home, "SELECT event_id, body FROM webhook_receipts r JOIN webhook_payloads ON receipt_id = r.id")
    )
    lost = [event for event in ledger.acked if stored.get(event) != ledger.bodies[event]]
    assert not lost, f"{len(lost)} acked and lost, such as {lost[:3]}: {seed}"
    assert len(ledger.accepted) == len(set(ledger.accepted)), f"an event was accepted twice: {seed}"
    handled = Counter(row[0] for shard in ("main", "a") for row in databases.rows(shard, "SELECT event_id FROM ledger"))
    assert handled == Counter(dict.fromkeys(stored, 1)), f"an event was not handled once: {seed}"
    sent = Counter(row[0] for row in databases.rows("main", "SELECT event_id FROM sent"))
    assert sent == Counter({event: 1 for event in stored if event.endswith("0")}), f"an effect did not run once: {seed}"


STEPS = ("begin", "copying", "comparing", "draining", "frozen", "left", "opened", "cleaning")


SOME_STEPS = ("copying", "frozen")


@pytest.mark.torture
@pytest.mark.parametrize("steps", [SOME_STEPS, pytest.param(STEPS, marks=pytest.mark.torture)], ids=["some", "all"])
async def test_mover_that_is_killed_at_its_steps_loses_and_doubles_nothing(
    databases: ShardDatabases, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    with services(tmp_path) as running:
        async with load(running) as ledger:
            await ledger.until_more(50)
            for step in steps:
                code, _, error = await run_mover(tmp_path, "a", step)
                assert code == -signal.SIGKILL, f"{step}: {error}"
            code, _, error = await run_mover(tmp_path, "a")
            assert code == 0, error
            await ledger.until_more(50)
        await deliver_the_rest(ledger, running[0].port)
        await assert_once(databases, ledger, "a")
    assert ledger.unavailable > 0


async def move_again_and_again(
    databases: ShardDatabases, folder: Path, moves: int
) -> tuple[PatientLedger, list[float]]:
    """Move the source back and forth. Movers are killed at random moments, and then one ends by itself."""
    frozen: list[float] = []
    with services(folder) as running:
        async with load(running) as ledger:
            home = "main"
            for _ in range(moves):
                await ledger.until_more(30)
                home = "a" if home == "main" else "main"
                for _ in range(ledger.chance.randrange(4)):
                    process = mover(folder, home)
                    ended = asyncio.create_task(asyncio.to_thread(process.communicate))
                    await pause_at_random(ledger.chance, 3.0)
                    process.kill()
                    await ended
                code, out, error = await run_mover(folder, home)
                assert code == 0 or f"stripe lives in {home} already" in error, error
                frozen += [float(out)] if code == 0 and out.strip() != "None" else []
            await ledger.until_more(50)
        await deliver_the_rest(ledger, running[0].port)
        await assert_once(databases, ledger, home)
    return ledger, frozen


@pytest.mark.torture
async def test_many_moves_with_killed_movers_lose_and_double_nothing(
    databases: ShardDatabases, tmp_path: Path, repetitions: Repetitions
) -> None:
    moves = repetitions(4, 20)
    ledger, frozen = await move_again_and_again(databases, tmp_path, moves)
    print(f"{len(ledger.acked)} events, {ledger.unavailable} rejected, frozen for {sorted(frozen)} s")
    assert len(ledger.acked) > 50 * moves
