"""The capacity model behind docs/scale.md: what a rate of events needs, from figures that `bench.capacity` measured.

The model adds up CPU time and bytes per event. It assumes nothing about a machine except that its cores are like the
measured ones. Every server is planned for UTILIZATION of its cores, because queues grow without bound near 100 %.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).parent / "capacity.json"

UTILIZATION = 0.6
"""The share of a core that the plan uses."""

DATABASE_CORES = 16
"""The largest PostgreSQL server that the plan uses before it adds a shard."""

RETENTION_DAYS = 30
SECONDS_PER_DAY = 86_400
RATES = (10, 100, 1_000, 10_000, 100_000)
"""Events per second, as an average over a busy hour."""

CORE_HOUR, GIGABYTE_MONTH = 0.04, 0.10
"""Example prices in dollars: a virtual core for an hour, and a gigabyte of fast disk for a month."""


@dataclass(frozen=True)
class Figures:
    """What one event costs, as measured. CPU in microseconds, sizes in bytes."""

    body: int
    accept_rate: float
    sqlite_accept_rate: float
    accept_cpu_us: float
    accept_server_us: float
    process_rate: float
    process_cpu_us: float
    process_server_us: float
    batch_rate: float
    batch_cpu_us: float
    batch_server_us: float
    lease_rate: float
    receipt_bytes: float
    payload_bytes: float
    wal_bytes: float
    vacuum_seconds_per_million: float
    page_ms: float
    search_ms: float
    receipts_searched: int
    fsyncs_per_second: float
    cores: int
    versions: str


@dataclass(frozen=True)
class Plan:
    """What a rate of events needs."""

    rate: int
    receiver_cores: float
    worker_cores: float
    database_cores: float
    shards: int
    stored_gigabytes: float
    wal_megabytes_per_second: float

    @property
    def step(self) -> str:
        """The smallest setup that carries this rate."""
        if self.shards > 1:
            return f"{self.shards} shards"
        if self.receiver_cores + self.worker_cores > 1:
            return "several hosts, one PostgreSQL" if self.database_cores > 2 else "several processes, one PostgreSQL"
        return "one process"


@dataclass(frozen=True)
class Cost:
    """What a million events cost."""

    receiver_core_seconds: float
    worker_core_seconds: float
    database_core_seconds: float
    gigabytes: float

    @property
    def dollars(self) -> float:
        """At the example prices and the planned utilization, with the events kept for RETENTION_DAYS."""
        seconds = self.receiver_core_seconds + self.worker_core_seconds + self.database_core_seconds
        return seconds / UTILIZATION / 3600 * CORE_HOUR + self.gigabytes * GIGABYTE_MONTH * RETENTION_DAYS / 30


def load_figures(file: Path = MEASURED) -> Figures:
    """Read the measured figures."""
    return Figures(**json.loads(file.read_text("utf-8")))


def plan(figures: Figures, rate: int, *, batch: bool = False) -> Plan:
    """Return what `rate` events a second need, with one handler per event or with batch handlers."""
    worker_us = figures.batch_cpu_us if batch else figures.process_cpu_us
    server_us = figures.accept_server_us + (figures.batch_server_us if batch else figures.process_server_us)
    database_cores = _cores(rate, server_us)
    return Plan(
        rate,
        receiver_cores=_cores(rate, figures.accept_cpu_us),
        worker_cores=_cores(rate, worker_us),
        database_cores=database_cores,
        shards=max(1, math.ceil(database_cores / DATABASE_CORES)),
        stored_gigabytes=rate * SECONDS_PER_DAY * RETENTION_DAYS * _stored_bytes(figures) / 1e9,
        wal_megabytes_per_second=rate * figures.wal_bytes / 1e6,
    )


def cost_per_million(figures: Figures, *, batch: bool = False) -> Cost:
    """Return what a million events cost. A microsecond per event is a second per million."""
    worker_us, server_us = (
        (figures.batch_cpu_us, figures.batch_server_us)
        if batch
        else (figures.process_cpu_us, figures.process_server_us)
    )
    gigabytes = 1e6 * _stored_bytes(figures) / 1e9
    return Cost(figures.accept_cpu_us, worker_us, figures.accept_server_us + server_us, gigabytes)


def largest_rate(figures: Figures, cores: int, *, batch: bool = False) -> float:
    """Return the events per second that one PostgreSQL server with `cores` carries."""
    server_us = figures.accept_server_us + (figures.batch_server_us if batch else figures.process_server_us)
    return cores * UTILIZATION * 1e6 / server_us


def _cores(rate: int, microseconds: float) -> float:
    return rate * microseconds / 1e6 / UTILIZATION


def _stored_bytes(figures: Figures) -> float:
    return figures.receipt_bytes + figures.payload_bytes
