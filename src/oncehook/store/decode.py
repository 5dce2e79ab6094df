"""Reads the rows of either database as structs."""

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

import msgspec

from oncehook.model.timestamps import rfc3339

T = TypeVar("T")


def decode(rows: Iterable[Any], kind: type[T]) -> list[T]:
    """Read rows of either database as a struct or dataclass, by the names of their columns."""
    moments = _moments(cast(type, kind))
    return [msgspec.convert(_plain(row, moments), kind, strict=False) for row in rows]


def _plain(row: Any, moments: frozenset[str]) -> dict[str, Any]:
    return {
        name: rfc3339(value) if isinstance(value, datetime) and name not in moments else value
        for name, value in dict(row).items()
    }


@cache
def _moments(kind: type) -> frozenset[str]:
    """The fields that are times, not texts."""
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if datetime in (hint, *get_args(hint)))
