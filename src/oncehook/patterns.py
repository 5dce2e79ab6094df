"""Type patterns: `*` matches any text, `?` matches one character, and every other character matches itself.

A pattern also matches as a dotted prefix: `push` matches `push.forced`. A type that is written out therefore always
matches itself, whatever is in it: `v2.core.account[requirements].updated`. The receiver and the handlers match in
Python, filters and leases in the database; all of them follow this module.
"""

import re
from fnmatch import translate
from functools import cache


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
