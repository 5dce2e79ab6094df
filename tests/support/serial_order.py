"""Checks the order of serial keys, from the begin and the end of each event that handlers recorded."""

from collections import defaultdict
from collections.abc import Iterable

Note = tuple[str, int, str]
"""(key, number of the event within its key, "begin" or "end")."""


def check_order(notes: Iterable[Note], *, crashes: bool = False) -> dict[str, list[int]]:
    """The events of each key in the order in which they ran: the order of arrival, one at a time.

    With `crashes`, an event may begin without ending, if the next of its key to begin is itself.
    """
    running: dict[str, int] = {}
    done: dict[str, list[int]] = defaultdict(list)
    for key, number, what in notes:
        if what == "begin":
            held = running.get(key)
            assert held is None or (crashes and held == number), f"{key}: {number} began while {held} was running"
            assert number >= max(done[key], default=-1), f"{key}: {number} began after {done[key]}"
            running[key] = number
        else:
            assert running.pop(key) == number
            done[key].append(number)
    return dict(done)


def most_at_once(notes: Iterable[Note]) -> int:
    """The largest number of events that ran at the same time."""
    running = most = 0
    for _, _, what in notes:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    return most
