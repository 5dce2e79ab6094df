"""Type patterns: `*` matches any text, `?` matches one character, and every other character matches itself.

A pattern also matches as a dotted prefix: `push` matches `push.forced`. A literal type therefore always matches itself,
even with special characters: `v2.core.account[requirements].updated`. The receiver and the handlers match in Python,
and filters and leases match in the database. All of them follow this module.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, lru_cache


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a type pattern as a regular expression for `fullmatch`."""
    literal = glob(pattern)
    return re.compile(f"(?:{translate(literal)})|(?:{translate(literal + '.*')})")


def glob(pattern: str) -> str:
    """Return a type pattern for SQLite's GLOB, where `[` begins a set of characters."""
    return pattern.replace("[", "[[]")


def like(pattern: str) -> str:
    """Return a type pattern for PostgreSQL's LIKE."""
    escaped = re.sub(r"[\\%_]", r"\\\g<0>", pattern)
    return escaped.replace("*", "%").replace("?", "_")


def overlap(first: str, second: str) -> bool:
    """Return whether some type matches both patterns."""
    return any(_globs_overlap(a, b) for a in (first, first + ".*") for b in (second, second + ".*"))


@cache
def _globs_overlap(a: str, b: str) -> bool:
    """Return whether some text matches both patterns, without the rule of the dotted prefix."""
    if not a or not b:
        return not (a or b).strip("*")
    if a[0] == "*":
        return _globs_overlap(a[1:], b) or _globs_overlap(a, b[1:])
    if b[0] == "*":
        return _globs_overlap(a, b[1:]) or _globs_overlap(a[1:], b)
    return (a[0] == b[0] or "?" in (a[0], b[0])) and _globs_overlap(a[1:], b[1:])


@dataclass(frozen=True, slots=True)
class Handled:
    """The events that a process handles: (source, type pattern) of its handlers, and the sources that it projects.

    A projection, such as the email tables, handles an event only if no process has a handler for it.
    """

    patterns: tuple[tuple[str, str], ...] = ()
    projected: frozenset[str] = frozenset()
    is_shared: bool = False  # whether other processes handle events that this one does not

    @property
    def sources(self) -> frozenset[str]:
        return self.projected | {source for source, _ in self.patterns}

    def __bool__(self) -> bool:
        return bool(self.patterns or self.projected)


@lru_cache(16)
def matchers(handled: Handled, notation: Callable[[str], str]) -> list[str]:
    """Return patterns that match the text `source type`, in the notation of `glob` or `like`.

    A type without `*` at its end has a second pattern, because it is also a dotted prefix.
    """
    patterns = []
    for source, pattern in handled.patterns:
        patterns.append(notation(f"{source} {pattern}"))
        if not pattern.endswith("*"):
            patterns.append(notation(f"{source} {pattern}.*"))
    return patterns
