"""Measures how fast the receiver accepts events: rate and CPU per event, as ratios to a bare echo on the same server.

    python -m bench.accept                      # echo, PostgreSQL and SQLite, interleaved; prints medians
    python -m bench.accept --seconds 1 --rounds 1 --connections 32

Compare only the ratios: absolute figures depend on the machine and its other load.
"""

import argparse
import hashlib
import hmac
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import uvloop
from rich.console import Console
from rich.table import Table

from bench.load import drive
from tests.support.servers import free_port, private_postgres

SECRET = "whsec_bench"
GOALS = {
    ("postgres", "rate"): (0.33, "at least"),
    ("postgres", "cpu"): (2.5, "at most"),
    ("sqlite", "rate"): (0.25, "at least"),
}


@dataclass
class Measurement:
    """The figures of one target in one round."""

    target: str
    rate: float
    cpu_us: float  # CPU of the receiver process per event, in microseconds
    p50_ms: float
    p99_ms: float
    events: int


def main() -> None:
    arguments = parse_arguments()
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncehook-bench-")))
        targets = {"echo": stack.enter_context(echo())}
        for name in arguments.targets:
            database = f"sqlite:///{folder / 'bench.db'}"
            if name == "postgres":
                database = stack.enter_context(private_postgres()).database()
            targets[name] = stack.enter_context(receiver(folder / name, database))
        rounds = []
        for number in range(arguments.rounds + 1):  # round 0 warms up and is discarded
            for name, (process, port) in targets.items():
                console.print(f"round {number} of {arguments.rounds}: {name} …", highlight=False)
                measurement = measure(name, process.pid, port, arguments)
                if number:
                    rounds.append(measurement)
        report(rounds, arguments, fsyncs_per_second(folder))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each target in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--targets", nargs="*", default=["postgres", "sqlite"], choices=["postgres", "sqlite"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    return parser.parse_args()


# -- targets --------------------------------------------------------------------------------------------------------


@contextmanager
def echo() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A bare ASGI app that reads the body and responds: the upper limit for any receiver on this server."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "bench.echo:app", "--port", str(port), "--no-access-log"]
    with running([*command, "--log-level", "warning"], port) as process:
        yield process, port


@contextmanager
def receiver(folder: Path, database: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`oncehook serve` without workers, logging at level info into a file."""
    folder.mkdir()
    config = folder / "oncehook.toml"
    config.write_text(f'database = "{database}"\nlog_format = "json"\n[sources.stripe]\nsecrets = ["{SECRET}"]\n')
    port = free_port()
    command = [sys.executable, "-m", "oncehook", "serve", "--no-worker", "--config", str(config), "--port", str(port)]
    with (folder / "log").open("wb") as log, running(command, port, log) as process:
        yield process, port


@contextmanager
def running(command: list[str], port: int, log: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        wait_until_ready(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1).read()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"a target did not start: {process.args!r}")
            time.sleep(0.05)


# -- measuring ------------------------------------------------------------------------------------------------------


def measure(name: str, pid: int, port: int, arguments: argparse.Namespace) -> Measurement:
    path = "/" if name == "echo" else "/webhooks/stripe"
    requests = iter(signed_requests(path, int(40_000 * arguments.seconds)))
    before = cpu_seconds(pid)
    result = uvloop.run(drive(port, requests, connections=arguments.connections, seconds=arguments.seconds))
    used = cpu_seconds(pid) - before
    unexpected = {status: count for status, count in result.responses.items() if status not in (200, 202)}
    if unexpected or not result.count:
        sys.exit(f"{name} responded with {unexpected or 'nothing'}")
    return Measurement(
        name,
        result.rate,
        1e6 * used / result.count,
        1e3 * result.percentile(0.5),
        1e3 * result.percentile(0.99),
        result.count,
    )


def signed_requests(path: str, count: int) -> Iterator[bytes]:
    """Signed requests with distinct event ids, about 1.2 kB each. All are prepared before the measurement starts."""
    filler = "x" * 900
    stamp = str(int(time.time()))
    run = secrets.token_hex(6)
    key = SECRET.encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: Stripe/1.0\r\naccept: */*\r\n"
    requests = []
    for number in range(count):
        body = (
            f'{{"id":"evt_{run}{number:08d}","object":"event","created":{stamp},"type":"invoice.paid",'
            f'"data":{{"object":{{"id":"in_{number}","object":"invoice","amount_paid":2900,"note":"{filler}"}}}}}}'
        ).encode()
        signature = hmac.digest(key, f"{stamp}.".encode() + body, hashlib.sha256).hex()
        requests.append(
            f"{head}content-type: application/json\r\nstripe-signature: t={stamp},v1={signature}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
    return iter(requests)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fsyncs_per_second(folder: Path) -> float:
    """The number of consecutive 8 kB writes that this disk makes durable per second."""
    with (folder / "fsync").open("wb") as file:
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < 0.5:
            file.write(b"x" * 8192)
            file.flush()
            os.fdatasync(file.fileno())
            count += 1
    return count / (time.perf_counter() - started)


# -- reporting ------------------------------------------------------------------------------------------------------


def report(rounds: list[Measurement], arguments: argparse.Namespace, fsyncs: float) -> None:
    names = list(dict.fromkeys(row.target for row in rounds))
    medians = {name: median([row for row in rounds if row.target == name]) for name in names}
    echo_median = medians["echo"]
    table = Table(title=f"accept, {arguments.connections} connections, {fsyncs:,.0f} fsyncs/s", title_justify="left")
    for title in ("target", "events/s", "× echo", "CPU µs/event", "× echo", "p50 ms", "p99 ms"):
        table.add_column(title, justify="left" if title == "target" else "right")
    missed = []
    for name, row in medians.items():
        ratios = {"rate": row.rate / echo_median.rate, "cpu": row.cpu_us / echo_median.cpu_us}
        rate = f"{row.rate:,.0f}", f"{ratios['rate']:.2f}"
        cpu = f"{row.cpu_us:.0f}", f"{ratios['cpu']:.2f}"
        table.add_row(name, *rate, *cpu, f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}")
        for figure, ratio in ratios.items():
            goal, sense = GOALS.get((name, figure), (None, ""))
            if goal is not None and (ratio < goal if sense == "at least" else ratio > goal):
                missed.append(f"{name}: {figure} is {ratio:.2f} × echo, but the goal is {sense} {goal}")
    Console().print(table)
    for line in missed:
        print(f"missed: {line}")
    if arguments.json:
        figures = {name: asdict(row) for name, row in medians.items()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"fsyncs_per_second": fsyncs, "medians": figures}, indent=2) + "\n")
    if arguments.check and missed:
        sys.exit(1)


def median(rows: list[Measurement]) -> Measurement:
    return Measurement(
        rows[0].target,
        rate=statistics.median(row.rate for row in rows),
        cpu_us=statistics.median(row.cpu_us for row in rows),
        p50_ms=statistics.median(row.p50_ms for row in rows),
        p99_ms=statistics.median(row.p99_ms for row in rows),
        events=round(statistics.median(row.events for row in rows)),
    )


if __name__ == "__main__":
    main()
