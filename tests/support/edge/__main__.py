"""The command line of the fuzzer."""

import argparse
import asyncio
import sys
import time

from oncehook.observability import signals
from tests.support.edge.comparison import Difference
from tests.support.edge.grammar import make_connection
from tests.support.edge.run import compare_alone, explain, run, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.edge", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--case", type=int, help="only this connection of the seed")
    arguments = parser.parse_args()
    signals.configure("error", "json")
    return asyncio.run(_run(arguments.seed, arguments.requests, arguments.case))


async def _run(seed: int, requests: int, case: int | None) -> int:
    if case is not None:
        connection = make_connection(seed, case, int(time.time()))
        found = await compare_alone(connection)
        print(explain(await shrink(found) if found else Difference(connection, "no difference")))
        return 1 if found else 0
    result = await run(seed, requests)
    rate = result.requests / result.seconds
    print(f"seed {seed}: {result.requests} requests in {result.seconds:.1f} s ({rate:.0f}/s), to both servers")
    print(dict(result.answers.most_common()))
    for difference in result.differences[:3]:
        print(explain(await shrink(difference)))
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
