"""Runs deliveries under faults: real processes on a real database, and a check of what is left.

python -m proof.deliveries                               100,000 deliveries on PostgreSQL, about three minutes
python -m proof.deliveries --database sqlite --deliveries 20000
python -m proof.deliveries --kinds F8 --deliveries 20000
"""

import argparse
import asyncio
import random
import sys

import uvloop

from proof.deliveries.run import Options, Outcome, run, say_to_people

ALL = frozenset(f"F{number}" for number in range(1, 27))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.deliveries", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--deliveries", type=int, default=100_000)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=700.0)
    parser.add_argument("--kinds", type=lambda text: frozenset(text.split(",")), default=ALL)
    o = parser.parse_args()
    options = Options(o.database, o.deliveries, random.randrange(2**32) if o.seed is None else o.seed, o.rate, o.kinds)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(options, say_to_people))
    print(outcome.as_json(), outcome.seconds)
    return int(bool(outcome.problems))


if __name__ == "__main__":
    sys.exit(main())
