"""How fast accepted events are worked off, one transactional insert each, and the ratio to PgQueuer in one run.

    python -m bench.process                     # PgQueuer, Oncehook one by one and in batches, in turns, medians
    python -m bench.process --targets single batch --events 2000 --rounds 1

- pgqueuer: a job is a transaction with one insert, through a pool of as many connections as Oncehook has; its marks are
  written beside, in bulk, after that has committed. It is installed into `.venv-bench`, from requirements/bench.txt.
- statement: the same without a transaction of the handler's own: the insert alone, which commits by itself. A handler
  with two writes cannot be written so.
- single: Oncehook, a transaction per receipt with the insert and the mark in it.
- batch: Oncehook, a handler with `batch=200`.

Every run has a process and a database of its own. Only the ratios mean anything: the rest moves with the machine.
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
"""Times PgQueuer's rate, at least."""

MORE = {"batch": 3}
"""Times as many events, so that every target runs for about as long."""


@dataclass
class Measured:
    """One target in one round."""

    target: str
    rate: float
    cpu_us: float  # of the worker's own process, per event
    server_us: float  # of PostgreSQL, per event
    events: int


def main() -> None:
    arguments = parse_arguments()
    console = Console(stderr=True)
    peer = peer_python(console) if {PEER, BARE} & set(arguments.targets) else None
    rounds = []
    with private_postgres() as server:
        for number in range(arguments.rounds + 1):  # the first warms up and is thrown away
            for target in arguments.targets:
                console.print(f"round {number} of {arguments.rounds}: {target} …", highlight=False)
                measured = measure(target, peer, server, arguments)
                if number:
                    rounds.append(measured)
    report(rounds, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5000, help="of each target in each round; three times for batch")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    return parser.parse_args()


def peer_python(console: Console) -> Path:
    """A Python that has PgQueuer, in an environment of its own beside ours."""
    folder, wanted = ROOT / ".venv-bench", ROOT / "requirements" / "bench.txt"
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.exists() or done.read_text() != wanted.read_text():
        console.print("installing PgQueuer into .venv-bench …", highlight=False)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", wanted], check=True, cwd=ROOT)
        done.write_text(wanted.read_text())
    return python


def measure(target: str, peer: Path | None, server: Postgres, arguments: argparse.Namespace) -> Measured:
    """Have a process of the target accept the events, and then work them off."""
    is_peer = target in (PEER, BARE)
    module = "bench.process_pgqueuer" if is_peer else "bench.process_oncehook"
    python = peer if is_peer else sys.executable
    events = arguments.events * MORE.get(target, 1)
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
    return Measured(target, figures["rate"], figures["cpu_us"], figures["server_us"], events)


# -- reporting ------------------------------------------------------------------------------------------------------


def report(rounds: list[Measured], arguments: argparse.Namespace) -> None:
    medians = {name: median([row for row in rounds if row.target == name]) for name in arguments.targets}
    peer = medians.get(PEER)
    table = Table(title=f"process, one insert an event, {arguments.concurrency} at once", title_justify="left")
    for title in ("target", "events/s", "× PgQueuer", "CPU µs/event", "PostgreSQL's"):
        table.add_column(title, justify="left" if title == "target" else "right")
    missed = []
    for name, row in medians.items():
        ratio = row.rate / peer.rate if peer else None
        cells = f"{row.rate:,.0f}", f"{ratio:.2f}" if ratio else "", f"{row.cpu_us:.0f}", f"{row.server_us:.0f}"
        table.add_row(name, *cells)
        if ratio is not None and ratio < GOALS.get(name, 0):
            missed.append(f"{name} has {ratio:.2f} × the rate of PgQueuer, at least {GOALS[name]} is the goal")
    Console().print(table)
    for line in missed:
        print(f"missed: {line}")
    if arguments.json:
        figures = {name: asdict(row) for name, row in medians.items()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"medians": figures}, indent=2) + "\n")
    if arguments.check and missed:
        sys.exit(1)


def median(rows: list[Measured]) -> Measured:
    middle = {name: statistics.median(getattr(row, name) for row in rows) for name in ("rate", "cpu_us", "server_us")}
    return Measured(rows[0].target, events=rows[0].events, **middle)


if __name__ == "__main__":
    main()
