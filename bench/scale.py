"""Measures what more processes on one PostgreSQL give, as ratios to the first variant of each measurement.

    python -m bench.scale                              # every measurement; prints a table
    python -m bench.scale --only accept --processes 1 2 4 --rounds 1

- accept: deliveries per second that `oncehook serve` accepts, with 1, 2 and 4 processes.
- process: events per second that `oncehook worker` processes settle, one insert and one transaction each.
- duplicates: deliveries per second of which 90 % are duplicates, compared with a bare echo on the same server.

Compare only the ratios. The load generator and PostgreSQL share the machine, so few cores limit what processes gain.

A new measurement is a function with the decorator `measurement`. It gets the bench and returns its figures by variant.
Every round uses a new database.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.accept import SECRET, echo, running, signed_requests
from bench.load import drive
from bench.process_oncehook import accept as insert_events
from bench.stopwatch import LEDGER
from oncehook import Inbox
from tests.support.redis_server import private_redis
from tests.support.servers import Postgres, free_port, private_postgres, run_sql

UNFINISHED = "SELECT count(*) FROM webhook_receipts WHERE status IN ('received', 'retrying', 'processing')"


@dataclass(frozen=True)
class Bench:
    """What a measurement uses: a server, a folder of its own, and the options of the command line."""

    server: Postgres
    folder: Path
    options: argparse.Namespace


Figures = dict[str, float]
"""The figure of each variant. The first variant is the one that the others are compared with."""


@dataclass(frozen=True)
class Measurement:
    """A named measurement."""

    name: str
    unit: str
    run: Callable[[Bench], Figures]


MEASUREMENTS: dict[str, Measurement] = {}


def measurement(name: str, unit: str) -> Callable[[Callable[[Bench], Figures]], Callable[[Bench], Figures]]:
    """Register a function as the measurement `name`."""

    def register(run: Callable[[Bench], Figures]) -> Callable[[Bench], Figures]:
        MEASUREMENTS[name] = Measurement(name, unit, run)
        return run

    return register


# -- measurements ---------------------------------------------------------------------------------------------------


@measurement("accept", "events/s")
def accept(bench: Bench) -> Figures:
    figures = {}
    for count in bench.options.processes:
        with service(bench, "--processes", str(count), "--no-worker") as port:
            requests = signed_requests("/webhooks/stripe", int(20_000 * bench.options.seconds))
            load = drive(port, requests, connections=bench.options.connections, seconds=bench.options.seconds)
            result = uvloop.run(load)
        if set(result.responses) != {202}:
            sys.exit(f"accept: {count} processes responded with {dict(result.responses)}")
        figures[variant(count)] = result.rate
    return figures


@measurement("process", "events/s")
def process(bench: Bench) -> Figures:
    return {variant(count): workers_rate(bench, count) for count in bench.options.processes}


@measurement("duplicates", "deliveries/s")
def duplicates(bench: Bench) -> Figures:
    with echo() as (_, port):
        figures = {"echo": storm_rate(bench, port, "/")}
    with private_redis() as cache:
        settings = {
            "without": "duplicate_cache = 0",
            "in the process": "",
            "Redis": f'redis = "{cache.url}"',
            "Redis alone": f'duplicate_cache = 0\nredis = "{cache.url}"',
        }
        for name, lines in settings.items():
            with service(bench, "--no-worker", settings=lines) as port:
                figures[name] = storm_rate(bench, port, "/webhooks/stripe")
    return figures


def storm_rate(bench: Bench, port: int, path: str) -> float:
    """Send every event ten times, in a random order within each 5,000 deliveries."""
    chance, first = random.Random(90), list(signed_requests(path, int(4_000 * bench.options.seconds)))
    windows = [10 * first[start : start + 500] for start in range(0, len(first), 500)]
    for window in windows:
        chance.shuffle(window)
    storm = (request for window in windows for request in window)
    load = drive(port, storm, connections=bench.options.connections, seconds=bench.options.seconds)
    result = uvloop.run(load)
    if not set(result.responses) <= {200, 202}:
        sys.exit(f"duplicates: responded with {dict(result.responses)}")
    return result.rate


def workers_rate(bench: Bench, count: int) -> float:
    """Let `count` workers start while the source is paused, and measure them from its resumption on."""
    database = bench.server.database()
    inbox = Inbox(database, worker=False)
    inbox.source("stripe", secrets=[SECRET])

    async def prepare() -> None:
        async with inbox.lifespan():
            await inbox.pause("stripe", actor="bench")
            await insert_events(inbox, bench.options.events)

    asyncio.run(prepare())
    run_sql(database, LEDGER)
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(worker(database))
        started = time.perf_counter()
        run_sql(database, "DELETE FROM webhook_pauses")
        wait_until_processed(database)
        seconds = time.perf_counter() - started
    if run_sql(database, "SELECT count(*) FROM ledger") != [(bench.options.events,)]:
        sys.exit("process: an event was not applied exactly once")
    return float(bench.options.events / seconds)


def wait_until_processed(database: str) -> None:
    deadline = time.monotonic() + 300
    while run_sql(database, UNFINISHED) != [(0,)]:
        if time.monotonic() > deadline:
            sys.exit("the events were not processed within five minutes")
        time.sleep(0.02)


def variant(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


# -- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def service(bench: Bench, *options: str, settings: str = "") -> Iterator[int]:
    """The port of `oncehook serve` on a new database."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    config, port = folder / "oncehook.toml", free_port()
    database = f'database = "{bench.server.database()}"\nlog_level = "warning"\n'
    config.write_text(f'{database}{settings}\n[sources.stripe]\nsecrets = ["{SECRET}"]\n')
    command = [sys.executable, "-m", "oncehook", "serve", "--config", str(config), "--port", str(port), *options]
    with running(command, port):
        yield port


@contextmanager
def worker(database: str) -> Iterator[None]:
    """An `oncehook worker` that has started."""
    settings = {"ONCEHOOK_DATABASE": database, "ONCEHOOK_POLL": "50ms", "ONCEHOOK_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "oncehook", "worker", "bench.scale_app:inbox"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | settings)
    assert process.stdout is not None
    try:
        if b"Oncehook worker" not in process.stdout.readline():
            sys.exit("a worker did not start")
        yield
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


# -- reporting ------------------------------------------------------------------------------------------------------


def main() -> None:
    options = parse_arguments()
    names = options.only or list(MEASUREMENTS)
    rounds: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="oncehook-bench-") as folder, private_postgres() as server:
        bench = Bench(server, Path(folder), options)
        for number in range(1, options.rounds + 1):
            for name in names:
                Console(stderr=True).print(f"round {number} of {options.rounds}: {name} …", highlight=False)
                rounds[name].append(MEASUREMENTS[name].run(bench))
    report({name: medians(rows) for name, rows in rounds.items()}, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(MEASUREMENTS), help="the measurements to run")
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each variant of a load")
    parser.add_argument("--events", type=int, default=10_000, help="events of each variant that workers process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def with_ratios(figures: Figures) -> dict[str, dict[str, float]]:
    """Each figure with its ratio to the first one."""
    first = next(iter(figures.values()))
    return {name: {"value": value, "ratio": value / first} for name, value in figures.items()}


def report(results: dict[str, Figures], options: argparse.Namespace) -> None:
    table = Table(title=f"scale, {os.cpu_count()} cores, {options.rounds} rounds", title_justify="left")
    for title in ("measurement", "variant", "median", "unit", "ratio"):
        table.add_column(title, justify="right" if title in ("median", "ratio") else "left")
    rows = {name: with_ratios(figures) for name, figures in results.items()}
    for name, variants in rows.items():
        for title, row in variants.items():
            table.add_row(name, title, f"{row['value']:,.0f}", MEASUREMENTS[name].unit, f"{row['ratio']:.2f}")
    Console().print(table)
    if options.json:
        units = {name: MEASUREMENTS[name].unit for name in rows}
        text = json.dumps({"cores": os.cpu_count(), "units": units, "measurements": rows}, indent=2)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
