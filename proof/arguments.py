"""Reads the options of the programs in this folder."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that are not below `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"expected a number of at least {least}, got {text!r}")
        return int(text)

    return parse


def seed_range(text: str) -> range:
    """Parse a range of seeds such as 0:5000. The end is not included."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ArgumentTypeError(f"expected the first seed and the end, such as 0:5000, got {text!r}")
    return range(int(first), int(end))
