"""Converts rows of either database to structs."""

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

import msgspec

from oncehook.model.timestamps import rfc3339

T = TypeVar("T")


def decode(rows: Iterable[Any], kind: type[T]) -> list[T]:
    """Convert rows to instances of a struct or dataclass, by column name."""
    datetimes = _datetime_fields(cast(type, kind))
    return [msgspec.convert(_plain(row, datetimes), kind, strict=False) for row in rows]


def _plain(row: Any, datetimes: frozenset[str]) -> dict[str, Any]:
    return {
        name: rfc3339(value) if isinstance(value, datetime) and name not in datetimes else value
        for name, value in dict(row).items()
    }


@cache
def _datetime_fields(kind: type) -> frozenset[str]:
    """Return the fields whose type is datetime. Times for other fields are converted to text."""
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if datetime in (hint, *get_args(hint)))
