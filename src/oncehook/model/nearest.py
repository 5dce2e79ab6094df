"""The nearest of some names, for the error about a name that does not exist."""

from collections.abc import Iterable

MAX_NAMES = 20
"""How many names an error lists."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that `name` resembles most, or None if it resembles none."""
    from difflib import get_close_matches  # only needed for an error

    return next(iter(get_close_matches(name, list(names), 1)), None)


def hint(name: str, names: Iterable[str], kind: str) -> str:
    """Return `did you mean …?` with the nearest name, or the existing names. `kind` is their plural."""
    known = sorted(names)
    found = nearest(name, known)
    if found is not None:
        return f"did you mean {found}?"
    return f"the {kind} are {', '.join(known[:MAX_NAMES])}" if known else f"there are no {kind}"
