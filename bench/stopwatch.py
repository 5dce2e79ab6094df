"""The stopwatch of one run. It imports only the standard library, so that it works in `.venv-bench` too."""

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path

BODY = json.dumps(
    {"id": "evt", "object": "event", "data": {"object": {"amount_paid": 2900, "note": "x" * 1000}}}
).encode()
LEDGER = "CREATE TABLE ledger (event_id text PRIMARY KEY, object_id text NOT NULL, paid_at timestamptz DEFAULT now())"
INSERT = "INSERT INTO ledger (event_id, object_id) VALUES ($1, $2)"


class Stopwatch:
    """Starts when a tenth of the events is done: by then connections are open and statements are prepared."""

    def __init__(self, events: int, backend: int) -> None:
        self.events = events
        self.postmaster = int(_stat(backend)[1])
        self.warm = events // 10
        self.done = self._counted = 0
        self.finished = asyncio.Event()
        self._started = self._now()

    def count(self, number: int = 1) -> None:
        before, self.done = self.done, self.done + number
        if before < self.warm <= self.done:
            self._counted, self._started = self.done, self._now()
        if self.done >= self.events:
            self.finished.set()

    def stop(self) -> dict[str, float]:
        seconds, own, server = (now - then for now, then in zip(self._now(), self._started, strict=True))
        counted = self.done - self._counted
        return {"rate": counted / seconds, "cpu_us": 1e6 * own / counted, "server_us": 1e6 * server / counted}

    def _now(self) -> tuple[float, float, float]:
        """The time, the CPU time of this process, and the CPU time of all PostgreSQL processes."""
        return time.perf_counter(), time.process_time(), server_cpu_seconds(self.postmaster)


def server_cpu_seconds(postmaster: int) -> float:
    """The CPU time of all processes of a PostgreSQL server so far."""
    ticks = sum(float(number) for number in _stat(postmaster)[13:15])  # children that have ended
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                stat = _stat(int(folder.name))
                ticks += int(stat[11]) + int(stat[12]) if int(stat[1]) == postmaster else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: parent, CPU times and others."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
