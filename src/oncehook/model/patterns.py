"""Type patterns: `*` matches any text, `?` matches one character, and every other character matches itself.

A pattern also matches as a dotted prefix: `push` matches `push.forced`. A type that is written out therefore always
matches itself, whatever is in it: `v2.core.account[requirements].updated`. The receiver and the handlers match in
Python, filters and leases in the database; all of them follow this module.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, lru_cache


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A type pattern as a regular expression for `fullmatch`."""
    literal = glob(pattern)
    return re.compile(f"(?:{translate(literal)})|(?:{translate(literal + '.*')})")


def glob(pattern: str) -> str:
    """A type pattern as SQLite's GLOB takes it, where `[` begins a set of characters."""
    return pattern.replace("[", "[[]")


def like(pattern: str) -> str:
    """A type pattern as PostgreSQL's LIKE takes it."""
    escaped = re.sub(r"[\\%_]", r"\\\g<0>", pattern)
    return escaped.replace("*", "%").replace("?", "_")


def overlap(one: str, other: str) -> bool:
    """Whether some type matches both patterns."""
    return any(_meet(a, b) for a in (one, one + ".*") for b in (other, other + ".*"))


@cache
def _meet(a: str, b: str) -> bool:
    """Whether some text matches both patterns, without the dotted prefix."""
    if not a or not b:
        return not (a or b).strip("*")
    if a[0] == "*":
        return _meet(a[1:], b) or _meet(a, b[1:])
    if b[0] == "*":
        return _meet(a, b[1:]) or _meet(a[1:], b)
    return (a[0] == b[0] or "?" in (a[0], b[0])) and _meet(a[1:], b[1:])


@dataclass(frozen=True, slots=True)
class Handled:
    """What a process handles: (source, type pattern) of its handlers and forwards, and the sources that it projects.

    A projection, such as the email tables, handles an event only while no process has a handler for it.
    """

    patterns: tuple[tuple[str, str], ...] = ()
    projected: frozenset[str] = frozenset()
    is_shared: bool = False  # whether other processes handle what this one does not

    @property
    def sources(self) -> frozenset[str]:
        return self.projected | {source for source, _ in self.patterns}

    def __bool__(self) -> bool:
        return bool(self.patterns or self.projected)


@lru_cache(16)
def matchers(handled: Handled, notation: Callable[[str], str]) -> list[str]:
    """The patterns of `source type`, in the notation of `glob` or `like`; a dotted prefix is a pattern beside."""
    found = []
    for source, pattern in handled.patterns:
        found.append(notation(f"{source} {pattern}"))
        if not pattern.endswith("*"):
            found.append(notation(f"{source} {pattern}.*"))
    return found
