"""What the long runs did, such as how many processes they killed. `make torture` shows the sums."""

from collections import Counter
from collections.abc import Callable

COUNTS: Counter[str] = Counter()

KILLS = "processes killed with SIGKILL at a random moment"
DATABASE_KILLS = "PostgreSQL servers killed with SIGKILL under load"
FAILOVERS = "failovers to the synchronous standby"
POWER_CUTS = "power cuts"
RACES = "races of 64 concurrent deliveries of one event"
MUTATED = "mutated deliveries that raised nothing but a rejection"
COMPARED = "requests that got the same answer on both paths"

Repetitions = Callable[[int, int], int]
"""How often a long run repeats: the first number, or the second with `--long`."""


def count(what: str, number: int = 1) -> None:
    """Add to the number of something that happened in this test."""
    COUNTS[what] += number
