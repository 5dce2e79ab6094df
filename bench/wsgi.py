"""Compares how fast the same inbox accepts events as an ASGI app and as a WSGI app, each in one process on PostgreSQL.

    python -m bench.wsgi                        # uvicorn, and gunicorn with threads; prints medians and the ratio
    python -m bench.wsgi --seconds 1 --rounds 1 --threads 8

Compare only the ratio: absolute figures depend on the machine and its other load.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.accept import running, signed_requests
from bench.load import drive
from tests.support.servers import free_port, private_postgres

PROGRAMS = Path(sys.executable).parent


def main() -> None:
    arguments = parse_arguments()
    rates: dict[str, list[float]] = {"asgi": [], "wsgi": []}
    with ExitStack() as stack:
        os.environ["BENCH_DATABASE"] = stack.enter_context(private_postgres()).database()
        ports = {name: stack.enter_context(served(name, arguments.threads)) for name in rates}
        for number in range(arguments.rounds + 1):  # round 0 warms up and is discarded
            for name, port in ports.items():
                rate = measure(port, arguments)
                if number:
                    rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["wsgi"] / medians["asgi"]
    print(f"asgi {medians['asgi']:,.0f} events/s, wsgi {medians['wsgi']:,.0f} events/s, ratio {ratio:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**medians, "ratio": ratio}) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--threads", type=int, default=32, help="of gunicorn")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each server in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@contextmanager
def served(name: str, threads: int) -> Iterator[int]:
    """The port of a server with the app."""
    port = free_port()
    command = [str(PROGRAMS / "uvicorn"), "--port", str(port), "--no-access-log", "--log-level", "warning"]
    if name == "wsgi":
        address = f"127.0.0.1:{port}"
        command = [str(PROGRAMS / "gunicorn"), "--threads", str(threads), "--bind", address, "--log-level", "warning"]
    with running([*command, f"bench.wsgi_app:{name}"], port):
        yield port


def measure(port: int, arguments: argparse.Namespace) -> float:
    """Return the number of events that a server accepts per second."""
    requests = signed_requests("/webhooks/stripe", int(10_000 * arguments.seconds))
    result = uvloop.run(drive(port, requests, connections=arguments.connections, seconds=arguments.seconds))
    if set(result.responses) != {202}:
        sys.exit(f"the server responded with {dict(result.responses)}")
    return result.rate


if __name__ == "__main__":
    main()
