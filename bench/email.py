"""Measures email events end to end (accept, normalise, project, settle), as a ratio to the receiver alone.

    python -m bench.email                       # PostgreSQL; prints medians and the ratio
    python -m bench.email --events 4000 --rounds 1

Each message has four events, as in real traffic. Some of the events are bounces, and half of those are soft.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from bench.accept import running
from bench.load import drive
from oncehook.cli.demo_session import make_keys
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from tests.support.servers import free_port, private_postgres

GOAL = 0.25
UNFINISHED = """
    SELECT EXISTS (SELECT FROM webhook_receipts
                   WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL)
        OR EXISTS (SELECT FROM webhook_receipts WHERE status = 'processing')
"""
EVENT_TYPES = ("processed", "delivered", "open", "click", "delivered", "delivered", "bounce", "open")


@dataclass
class Measurement:
    """The figures of one target in one round."""

    target: str
    rate: float
    seconds: float


def main() -> None:
    arguments = parse_arguments()
    private, public = make_keys()["sendgrid"]
    rounds: list[Measurement] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncehook-bench-")))
        postgres = stack.enter_context(private_postgres())
        for number in range(arguments.rounds + 1):  # round 0 warms up and is discarded
            for target in ("receiver alone", "end to end"):
                Console(stderr=True).print(f"round {number} of {arguments.rounds}: {target} …", highlight=False)
                requests = signed_requests(arguments.events, arguments.batch, private, number)
                with running_service(folder / f"{target}-{number}", postgres.database(), public, target) as (
                    database,
                    port,
                ):
                    measurement = measure(target, database, port, requests, arguments)
                if number:
                    rounds.append(measurement)
    report(rounds, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=100, help="events per delivery")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if the goal is missed")
    return parser.parse_args()


@contextmanager
def running_service(folder: Path, database: str, public: str, target: str) -> Iterator[tuple[str, int]]:
    folder.mkdir()
    config = folder / "oncehook.toml"
    config.write_text(
        f'database = "{database}"\nlog_level = "warning"\n[sources.sendgrid]\nsecrets = ["{public}"]\nemail = true\n'
    )
    port = free_port()
    options = ["--no-worker"] if target == "receiver alone" else []
    command = [sys.executable, "-m", "oncehook", "serve", *options, "--config", str(config), "--port", str(port)]
    with (folder / "log").open("wb") as log, running(command, port, log):
        yield database, port


def signed_requests(count: int, batch: int, private: str, number: int) -> list[bytes]:
    """Signed SendGrid deliveries as raw HTTP requests."""
    now = int(time.time())
    events = [event(n, number, now) for n in range(count)]
    return [_request(events[start : start + batch], private, now) for start in range(0, count, batch)]


def event(n: int, number: int, now: int) -> dict[str, Any]:
    message, type_ = n // 4, EVENT_TYPES[n % len(EVENT_TYPES)]
    return {
        "email": f"customer-{message % 5000}@example.com", "timestamp": now - n % 60, "event": type_,
        "category": ["receipt"], "sg_event_id": f"{number}-{n}", "sg_message_id": f"{number}-{message}.filter0001",
        "smtp-id": f"<{message}@example.com>", "ip": "192.0.2.1", "useragent": "Mozilla/5.0",
        "type": "bounce" if message % 4 < 2 else "blocked",
    }  # fmt: skip


def _request(events: list[dict[str, Any]], private: str, now: int) -> bytes:
    body = json.dumps(events).encode()
    headers, _ = sign(built_in("sendgrid"), body, private, headers={"Content-Type": "application/json"}, now=now)
    lines = ["POST /webhooks/sendgrid HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def measure(target: str, database: str, port: int, requests: list[bytes], arguments: argparse.Namespace) -> Measurement:
    started = time.perf_counter()
    result = uvloop.run(drive(port, iter(requests), connections=arguments.connections, seconds=300))
    if set(result.responses) != {202}:
        sys.exit(f"{target} responded with {dict(result.responses)}")
    ended = time.perf_counter()
    if target == "end to end":
        ended = asyncio.run(until_processed(database, arguments.events))
    seconds = ended - started
    return Measurement(target, arguments.events / seconds, seconds)


async def until_processed(database: str, count: int) -> float:
    """Wait until all events are processed. The polled query reads only two small indexes. Returns the time."""
    connection = await asyncpg.connect(database)
    deadline = time.monotonic() + 300
    while await connection.fetchval(UNFINISHED):
        if time.monotonic() > deadline:
            sys.exit("the events were not processed within five minutes")
        await asyncio.sleep(0.02)
    ended = time.perf_counter()
    processed = await connection.fetchval("SELECT count(*) FROM webhook_receipts WHERE status = 'processed'")
    facts = await connection.fetchval("SELECT count(*) FROM webhook_email_events")
    statuses = await connection.fetchval("SELECT count(*) FROM webhook_email_status")
    await connection.close()
    if (processed, facts, statuses) != (count, count, -(-count // 4)):
        sys.exit(f"{count} events gave {processed} processed receipts, {facts} email events and {statuses} statuses")
    return ended


def report(rounds: list[Measurement], arguments: argparse.Namespace) -> None:
    medians = {
        target: statistics.median(row.rate for row in rounds if row.target == target)
        for target in dict.fromkeys(row.target for row in rounds)
    }
    ratio = medians["end to end"] / medians["receiver alone"]
    table = Table(title=f"email, {arguments.events:,} events, {arguments.batch} per delivery", title_justify="left")
    for title in ("target", "events/s", "× receiver"):
        table.add_column(title, justify="left" if title == "target" else "right")
    for target, rate in medians.items():
        table.add_row(target, f"{rate:,.0f}", f"{rate / medians['receiver alone']:.2f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"medians": medians, "ratio": ratio}, indent=2) + "\n")
    if ratio < GOAL:
        print(f"missed: end to end is {ratio:.2f} × the receiver alone, but the goal is at least {GOAL}")
        if arguments.check:
            sys.exit(1)


if __name__ == "__main__":
    main()
