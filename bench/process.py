"""Measures how fast workers handle events, with one transactional insert per event, as a ratio to PgQueuer.

    python -m bench.process                     # all targets, interleaved; prints medians
    python -m bench.process --targets single batch --events 2000 --rounds 1

- pgqueuer: each job runs one insert in a transaction, on a pool with as many connections as Oncehook has. PgQueuer
  writes the job's status separately, in bulk, after that commit. It is installed into `.venv-bench`, from
  requirements/bench.txt.
- statement: the same without a transaction: the insert commits by itself. This does not work for a handler with two
  writes.
- single: Oncehook, one transaction per receipt with the insert and the processed status.
- batch: Oncehook, a handler with `batch=200`.

Each run uses a new process and a new database. Compare only the ratios: absolute figures depend on the machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.servers import Postgres, private_postgres

ROOT = Path(__file__).parent.parent
PEER = "pgqueuer"
BARE = "statement"
TARGETS = (PEER, BARE, "single", "batch")
GOALS = {"single": 1.0, "batch": 3.0}
"""Minimum rate, as a multiple of PgQueuer's rate."""

EVENT_FACTORS = {"batch": 3}
"""Multiples of --events, so that all targets run for about the same time."""


@dataclass
class Measurement:
    """The figures of one target in one round."""

    target: str
    rate: float
    cpu_us: float  # CPU of the worker process per event, in microseconds
    server_us: float  # CPU of PostgreSQL per event, in microseconds
    events: int


def main() -> None:
    arguments = parse_arguments()
    console = Console(stderr=True)
    peer = peer_python(console) if {PEER, BARE} & set(arguments.targets) else None
    rounds = []
    with private_postgres() as server:
        for number in range(arguments.rounds + 1):  # round 0 warms up and is discarded
            for target in arguments.targets:
                console.print(f"round {number} of {arguments.rounds}: {target} …", highlight=False)
                measurement = measure(target, peer, server, arguments)
                if number:
                    rounds.append(measurement)
    report(rounds, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--events", type=int, default=5000, help="events per target and round; three times as many for batch"
    )
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    return parser.parse_args()


def peer_python(console: Console) -> Path:
    """The interpreter of `.venv-bench`, a separate virtual environment with PgQueuer."""
    folder, requirements = ROOT / ".venv-bench", ROOT / "requirements" / "bench.txt"
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        console.print("installing PgQueuer into .venv-bench …", highlight=False)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "-r", str(requirements)], check=True, cwd=ROOT)
        installed.write_text(requirements.read_text())
    return python


def measure(target: str, peer: Path | None, server: Postgres, arguments: argparse.Namespace) -> Measurement:
    """Run one process that accepts the events and then handles them."""
    is_peer = target in (PEER, BARE)
    module = "bench.process_pgqueuer" if is_peer else "bench.process_oncehook"
    python = peer if is_peer else sys.executable
    events = arguments.events * EVENT_FACTORS.get(target, 1)
    options = ["--events", str(events), "--concurrency", str(arguments.concurrency)]
    if target == PEER:
        options += ["--transaction"]
    if target == "batch":
        options += ["--batch", str(arguments.batch)]
    command = [str(python), "-m", module, "--database", server.database(), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{target} failed:\n{done.stderr[-4000:]}")
    figures = json.loads(done.stdout)
    if figures["rows"] != events:
        sys.exit(f"{target} left {figures['rows']} rows for {events} events")
    return Measurement(target, figures["rate"], figures["cpu_us"], figures["server_us"], events)


# -- reporting ------------------------------------------------------------------------------------------------------


def report(rounds: list[Measurement], arguments: argparse.Namespace) -> None:
    medians = {name: median([row for row in rounds if row.target == name]) for name in arguments.targets}
    peer = medians.get(PEER)
    table = Table(title=f"process, one insert per event, concurrency {arguments.concurrency}", title_justify="left")
    for title in ("target", "events/s", "× PgQueuer", "CPU µs/event", "PostgreSQL µs/event"):
        table.add_column(title, justify="left" if title == "target" else "right")
    missed = []
    for name, row in medians.items():
        ratio = row.rate / peer.rate if peer else None
        cells = f"{row.rate:,.0f}", f"{ratio:.2f}" if ratio else "", f"{row.cpu_us:.0f}", f"{row.server_us:.0f}"
        table.add_row(name, *cells)
        if ratio is not None and ratio < GOALS.get(name, 0):
            missed.append(f"{name} has {ratio:.2f} × the rate of PgQueuer, but the goal is at least {GOALS[name]}")
    Console().print(table)
    for line in missed:
        print(f"missed: {line}")
    if arguments.json:
        figures = {name: asdict(row) for name, row in medians.items()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"medians": figures}, indent=2) + "\n")
    if arguments.check and missed:
        sys.exit(1)


def median(rows: list[Measurement]) -> Measurement:
    return Measurement(
        rows[0].target,
        rate=statistics.median(row.rate for row in rows),
        cpu_us=statistics.median(row.cpu_us for row in rows),
        server_us=statistics.median(row.server_us for row in rows),
        events=rows[0].events,
    )


if __name__ == "__main__":
    main()
