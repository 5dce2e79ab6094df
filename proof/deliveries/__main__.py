"""Runs deliveries under faults: real processes on a real database. Then it checks every event.

python -m proof.deliveries                                          100,000 deliveries on PostgreSQL, 23 kinds of faults
python -m proof.deliveries --database sqlite --deliveries 20000     the same on SQLite
python -m proof.deliveries --kills 20 --deliveries 20000            kill -9 of PostgreSQL, 20 times
"""

import argparse
import random
import sys

from proof.arguments import at_least
from proof.deliveries.kinds import NAMES
from proof.deliveries.result import command_of, result_of
from proof.deliveries.run import Options, run, run_program, say_to_people
from proof.results import write_result


def main() -> int:
    options = read_options()
    outcome = run_program(run(options, say_to_people))
    result = result_of(outcome)
    print("\n".join(f"{label}: {value}" for label, value in result["facts"]))
    write_result(options.name, result)
    if outcome.problems:
        print("\n".join(["", *outcome.problems, f"Repeat it with: {command_of(options)}"]), file=sys.stderr)
    return int(bool(outcome.problems))


def read_options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m proof.deliveries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deliveries", type=at_least(100), default=100_000, help="how many are sent (default 100000)")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--seed", type=int, help="the seed of a former run (default: a new one)")
    parser.add_argument("--rate", type=at_least(1), default=1500, help="deliveries per second at most (default 1500)")
    parser.add_argument("--kinds", type=_kinds, default=NAMES, help="only these kinds of faults, such as F1,F8")
    parser.add_argument("--kills", type=at_least(1), help="only kill -9 of PostgreSQL, at least this many times")
    read = parser.parse_args()
    if read.kills is not None and read.database != "postgres":
        parser.error("--kills needs --database postgres")
    seed = random.SystemRandom().randrange(2**32) if read.seed is None else read.seed
    kinds = read.kinds if read.kills is None else frozenset({"F8"})
    return Options(read.database, read.deliveries, seed, read.rate, kinds, read.kills)


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(text.split(","))
    if unknown := sorted(kinds - NAMES):
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is not a kind of fault: expected F1 to F26, such as F1,F8"
        )
    return kinds


if __name__ == "__main__":
    sys.exit(main())
