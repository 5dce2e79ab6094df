"""Runs a seed of the fuzzer, and makes a connection that shows a difference as small as it can."""

import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.edge.comparison import Difference, compare_answers, compare_rows, running_pair
from tests.support.edge.grammar import Connection, Step, make_connection
from tests.support.servers import in_memory

TOGETHER = 64  # connections at once: their claims share commits
SHRINK_SECONDS = 60.0


@dataclass
class Result:
    """What one run did."""

    seed: int
    connections: int = 0
    requests: int = 0
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


async def run(seed: int, requests: int) -> Result:
    """Send at least `requests` requests to both servers, and stop after the first batch with a difference."""
    result, started, batches = Result(seed), time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="oncehook-edge-", dir=in_memory()) as folder:
        async with running_pair(Path(folder)) as pair:
            while result.requests < requests and not result.differences:
                first, now = result.connections, int(time.time())
                batch = [make_connection(seed, number, now) for number in range(first, first + TOGETHER)]
                result.differences += await compare_answers(pair, batch)
                result.connections += len(batch)
                result.requests += sum(connection.requests for connection in batch)
                batches += batch
        result.differences += compare_rows(pair, batches)
        result.answers = pair.answers
    result.seconds = time.monotonic() - started
    return result


async def compare_alone(connection: Connection) -> Difference | None:
    """Send one connection to two new inboxes."""
    with tempfile.TemporaryDirectory(prefix="oncehook-edge-", dir=in_memory()) as folder:
        async with running_pair(Path(folder)) as pair:
            found = await compare_answers(pair, [connection])
        return next(iter([*found, *compare_rows(pair, [connection])]), None)


async def shrink(difference: Difference) -> Difference:
    """Remove steps, and then bytes, while the two servers still differ. The connection alone must show it."""
    smallest = await compare_alone(difference.connection)
    if smallest is None:
        return difference  # it needs the other connections of its batch
    ends = time.monotonic() + SHRINK_SECONDS
    size = max(1, len(smallest.connection.steps) // 2)
    while size and time.monotonic() < ends:
        found = await _smaller(smallest.connection, size, ends)
        if found is None:
            size //= 2
        else:
            smallest = found
    return smallest


async def _smaller(connection: Connection, size: int, ends: float) -> Difference | None:
    """The difference without `size` neighboring steps, if there is still one."""
    steps = connection.pieces() if size == 1 else list(connection.steps)
    for start in range(0, len(steps), size):
        if time.monotonic() > ends:
            return None
        fewer = steps[:start] + steps[start + size :]
        found = await compare_alone(replace(connection, steps=tuple(fewer))) if fewer else None
        if found is not None:
            return found
    return None


def explain(difference: Difference) -> str:
    """The difference as text, with the command that repeats it."""
    connection = difference.connection
    return "\n".join(
        [
            _short(difference.what),
            "pieces: " + _show(connection.pieces()),
            f"repeat: python -m tests.support.edge --seed {connection.seed} --case {connection.number}",
        ]
    )


def _show(pieces: Sequence[Step]) -> str:
    return _short(", ".join(repr(piece) if isinstance(piece, bytes) else piece.name for piece in pieces))


def _short(text: str) -> str:
    """The text with long runs of one character, and of the two of its hexadecimal form, written as a product."""
    return re.sub(r"(\w{1,2}?)\1{30,}", lambda run: f"<{run[1]} * {len(run[0]) // len(run[1])}>", text)


def run_seed(seed: int, requests: int) -> Result:
    return asyncio.run(run(seed, requests))
