"""One run: a server and a worker on PostgreSQL, events at a constant rate, and samples of the server's memory."""

import asyncio
import contextlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from proof.deliveries.processes import APP, Slot
from proof.deliveries.tables import KEYS, TABLES
from proof.load.clients import Hostile, Load
from tests.support.events import STRIPE_SECRET
from tests.support.serve import ONCEHOOK
from tests.support.servers import migrate, private_postgres, run_sql

PHASES = {"warm-up": (0.0, 0.2), "calm": (0.2, 0.5), "hostile clients": (0.5, 0.8), "after them": (0.8, 1.0)}
"""Which part of the run each phase is. Hostile clients connect in the third."""

BEFORE, AFTER = (0.2, 0.4), (0.8, 1.0)
"""The parts of the run whose memory and descriptors are compared: the second and the last of five minutes."""

CONFIG = """
database = "{database}"
duplicate_cache = "1MiB"
migrate = "never"
log_level = "error"

[sources.stripe]
secrets = ["{secret}"]
"""
"""The cache of receipts is small, so that it fills up during the warm-up. Later growth is then a leak."""

UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"
SETTLE_SECONDS = 120.0


@dataclass(frozen=True)
class Sample:
    """The memory and descriptors of the server at one moment."""

    second: float
    megabytes: float
    descriptors: int


@dataclass
class Outcome:
    rate: float
    seconds: float
    load: Load
    hostile: Hostile
    samples: list[Sample]
    problems: list[str]

    def phase(self, name: str) -> dict[str, float]:
        """The latencies of a phase in milliseconds."""
        start, end = (self.seconds * share for share in PHASES[name])
        found = sorted(1000 * latency for due, latency in self.load.latencies if start <= due < end)
        if not found:
            return {}
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        figures = {label: found[min(len(found) - 1, int(share * len(found)))] for label, share in shares.items()}
        return {label: round(value, 1) for label, value in (figures | {"max": found[-1]}).items()}

    def mean(self, part: tuple[float, float], of: Callable[[Sample], float]) -> float:
        """The mean of a part of the run, or 0 without a sample: then the server has ended, which is a problem."""
        start, end = (self.seconds * share for share in part)
        found = [of(sample) for sample in self.samples if start <= sample.second <= end]
        return statistics.fmean(found) if found else 0.0


async def run(rate: float, seconds: float, say: Callable[[str], None]) -> Outcome:
    async with _service() as (database, server):
        assert server.port is not None and server.process is not None
        load, hostile, samples = Load(server.port, rate, seconds), Hostile(server.port), list[Sample]()
        sampling = asyncio.create_task(_sample(server.process, samples, load, say))
        attacking = asyncio.create_task(_attack(hostile, seconds))
        try:
            await load.run()
        finally:
            for task in (sampling, attacking):
                task.cancel()
            await asyncio.gather(sampling, attacking, return_exceptions=True)
        say("waiting until every event is processed")
        deadline = time.monotonic() + SETTLE_SECONDS
        while run_sql(database, UNFINISHED)[0][0] and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        ended = [f"the server {reason}" for reason in server.exits]
        problems = ended + load.failures[:5] + _lost(database, load)
        return Outcome(rate, seconds, load, hostile, samples, problems)


@contextlib.asynccontextmanager
async def _service() -> AsyncIterator[tuple[str, Slot]]:
    """A server without handlers and a worker, which are ready."""
    folder = Path(tempfile.mkdtemp(prefix="oncehook-load-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = stack.enter_context(private_postgres())
        database = postgres.database()
        await asyncio.to_thread(migrate, database)
        for statement in TABLES:
            run_sql(database, statement.format(key=KEYS["postgres"]))
        config = folder / "oncehook.toml"
        config.write_text(CONFIG.format(database=database, secret=STRIPE_SECRET))
        environment = {"DELIVERIES_CONFIG": str(config), "DELIVERIES_SQLITE": "", "DELIVERIES_MISDEEDS": ""}
        server = Slot("serve", folder, ["serve", "--config", str(config), "--port", "0"], environment)
        worker = Slot("worker", folder, ["worker", APP, "--config", str(config)], environment)
        running = [asyncio.create_task(slot.run()) for slot in (server, worker)]
        try:
            while server.port is None or worker.process is None:
                await asyncio.sleep(0.05)
            yield database, server
        finally:
            for slot in (server, worker):
                slot.kill()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _attack(hostile: Hostile, seconds: float) -> None:
    start, end = PHASES["hostile clients"]
    await asyncio.sleep(seconds * start)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(hostile.run(), seconds * (end - start))


async def _sample(
    process: "subprocess.Popen[bytes]", samples: list[Sample], load: Load, say: Callable[[str], None]
) -> None:
    began, folder = time.monotonic(), Path(f"/proc/{process.pid}")
    for number in range(10**6):
        await asyncio.sleep(0.5)
        found = re.search(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())
        assert found is not None
        descriptors = len(list((folder / "fd").iterdir()))
        samples.append(Sample(time.monotonic() - began, int(found[1]) / 1024, descriptors))
        if number % 40 == 39:
            last = sorted(1000 * latency for _, latency in load.latencies[-1000:])
            say(
                f"{len(load.latencies):,} events, the last thousand with p99 {last[int(len(last) * 0.99)]:.1f} ms; "
                f"{samples[-1].megabytes:.0f} MB, {descriptors} descriptors"
            )


def _lost(database: str, load: Load) -> list[str]:
    problems = []
    counts = run_sql(database, "SELECT count(*), count(DISTINCT event_id) FROM ledger")[0]
    if counts != (len(load.acked), len(load.acked)):
        problems.append(f"{len(load.acked)} events were acked, {counts[1]} were applied, with {counts[0]} ledger rows")
    done = subprocess.run([ONCEHOOK, "fsck"], env={"ONCEHOOK_DATABASE": database}, capture_output=True, text=True)
    if done.returncode:
        problems.append(f"oncehook fsck found violations: {done.stdout[-2000:]}{done.stderr[-500:]}")
    return problems
