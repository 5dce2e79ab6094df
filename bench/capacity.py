"""Measures what one event costs, for the capacity model: CPU, bytes, write-ahead log, leases, vacuum and search.

    python -m bench.capacity                          # prints the plan for each rate
    python -m bench.capacity --json bench/capacity.json   # also writes the figures that docs/scale.md shows
    python -m bench.capacity --seconds 0.2 --events 300 --receipts 200

It takes about three minutes, with a private PostgreSQL. Run it on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bench import accept, events
from bench.capacity_model import RATES, Figures, cost_per_million, plan
from bench.process_oncehook import accept as claim_events
from bench.stopwatch import BODY, server_cpu_seconds
from oncehook import Inbox, __version__
from tests.support.servers import Postgres, private_postgres

LEASED = 100


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="oncehook-bench-") as name, private_postgres() as server:
        folder = Path(name)
        folder.chmod(0o755)
        figures = measure(server, folder, arguments, Console(stderr=True))
    report(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(figures), indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of each measurement of the receiver")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--events", type=int, default=20_000, help="events that workers handle")
    parser.add_argument("--receipts", type=int, default=1_000_000, help="receipts that the search has to deal with")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def measure(server: Postgres, folder: Path, arguments: argparse.Namespace, console: Console) -> Figures:
    parts: dict[str, float] = {}
    steps: dict[str, Callable[[], dict[str, float]]] = {
        "the receiver on SQLite": lambda: sqlite_receiver(folder, arguments),
        "the receiver on PostgreSQL": lambda: receiver(server, folder, arguments),
        "the worker, and the bytes of an event": lambda: worker(server, arguments),
        "the worker with a batch handler": lambda: batch_worker(server, arguments),
        "leases": lambda: asyncio.run(leases(server, arguments.events)),
        "the search": lambda: search(server, folder, arguments.receipts),
    }
    for title, step in steps.items():
        console.print(f"measuring {title} …", highlight=False)
        parts |= step()
    parts["fsyncs_per_second"] = accept.fsyncs_per_second(folder)
    postgres = "".join(run_row(server.url("postgres"), "SHOW server_version")).split()[0]
    versions = f"Oncehook {__version__}, Python {platform.python_version()}, PostgreSQL {postgres}"
    rounded: dict[str, Any] = {
        key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in parts.items()
    }
    return Figures(body=len(BODY), cores=os.cpu_count() or 1, versions=versions, **rounded)


# -- measurements ---------------------------------------------------------------------------------------------------


def sqlite_receiver(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    with accept.receiver(folder / "sqlite", f"sqlite:///{folder / 'bench.db'}") as (process, port):
        accept.measure("sqlite", process.pid, port, arguments)  # warms up
        return {"sqlite_accept_rate": accept.measure("sqlite", process.pid, port, arguments).rate}


def receiver(server: Postgres, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    assert server.process is not None
    with accept.receiver(folder / "postgres", server.database()) as (process, port):
        accept.measure("postgres", process.pid, port, arguments)  # warms up
        before = server_cpu_seconds(server.process.pid)
        figures = accept.measure("postgres", process.pid, port, arguments)
        used = server_cpu_seconds(server.process.pid) - before
    server_us = 1e6 * used / figures.events
    return {"accept_rate": figures.rate, "accept_cpu_us": figures.cpu_us, "accept_server_us": server_us}


def worker(server: Postgres, arguments: argparse.Namespace) -> dict[str, float]:
    """Let a worker handle events, and measure what they leave in the database."""
    database = server.database()
    before = run_row(database, "SELECT pg_current_wal_lsn()")[0]
    figures = process(database, arguments.events)
    (wal,) = run_row(database, f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{before}')")
    seconds = vacuum(database)
    return {
        "process_rate": figures["rate"],
        "process_cpu_us": figures["cpu_us"],
        "process_server_us": figures["server_us"],
        "wal_bytes": float(wal) / arguments.events,
        "receipt_bytes": size_of(database, "webhook_receipts") / arguments.events,
        "payload_bytes": size_of(database, "webhook_payloads") / arguments.events,
        "vacuum_seconds_per_million": seconds * 1e6 / arguments.events,
    }


def batch_worker(server: Postgres, arguments: argparse.Namespace) -> dict[str, float]:
    figures = process(server.database(), 3 * arguments.events, "--batch", "200")
    return {f"batch_{key}": figures[key] for key in ("rate", "cpu_us", "server_us")}


def process(database: str, count: int, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.process_oncehook", "--database", database, "--concurrency", "16"]
    done = subprocess.run([*command, "--events", str(count), *options], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"the worker failed:\n{done.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


async def leases(server: Postgres, count: int) -> dict[str, float]:
    """Lease receipts in batches of LEASED, without handling them."""
    inbox = Inbox(server.database(), worker=False)
    inbox.source("stripe", secrets=["whsec_bench"])
    async with inbox.lifespan():
        await claim_events(inbox, count)
        take, started, leased = inbox._runtime.store.leases.take, time.perf_counter(), 0
        while taken := await take(LEASED, 60.0, "bench"):
            leased += len(taken)
        return {"lease_rate": leased / (time.perf_counter() - started)}


def search(server: Postgres, folder: Path, receipts: int) -> dict[str, float]:
    durations = events.measure(server, folder, receipts)
    found = durations["search by event id"]
    return {"page_ms": durations["the first page"], "search_ms": found, "receipts_searched": receipts}


# -- the database ---------------------------------------------------------------------------------------------------


def run_row(database: str, statement: str) -> tuple[Any, ...]:
    with psycopg.connect(database, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row


def vacuum(database: str) -> float:
    """Vacuum the receipts, and return how many seconds that took."""
    with psycopg.connect(database, autocommit=True) as connection:
        started = time.perf_counter()
        connection.execute("VACUUM webhook_receipts")
        return time.perf_counter() - started


def size_of(database: str, table: str) -> float:
    """The bytes of a table and its partitions, with indexes."""
    tree = f"SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{table}')"  # empty for a plain table
    return float(run_row(database, f"SELECT coalesce(({tree}), pg_total_relation_size('{table}'))")[0])


# -- reporting ------------------------------------------------------------------------------------------------------


def report(figures: Figures) -> None:
    table = Table(title="what a rate of events needs, with one handler per event", title_justify="left")
    for title in ("events/s", "receiver cores", "worker cores", "PostgreSQL cores", "kept for 30 days", "setup"):
        table.add_column(title, justify="left" if title == "setup" else "right")
    for rate in RATES:
        needs = plan(figures, rate)
        cores = (needs.receiver_cores, needs.worker_cores, needs.database_cores)
        stored = f"{needs.stored_gigabytes:,.0f} GB"
        table.add_row(f"{rate:,}", *(f"{number:.1f}" for number in cores), stored, needs.step)
    Console().print(table)
    cost = cost_per_million(figures)
    Console().print(f"a million events: {cost.dollars:.2f} dollars at the example prices of bench/capacity_model.py")


if __name__ == "__main__":
    main()
