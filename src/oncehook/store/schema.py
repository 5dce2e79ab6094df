"""What both databases share about their tables."""

from collections.abc import Iterable, Mapping
from typing import Any


def moves(sql: Mapping[str, str], columns: Iterable[Any]) -> list[str]:
    """One statement per table that moves the times in these (table, column) pairs back."""
    tables: dict[str, list[str]] = {}
    for table, column in columns:
        tables.setdefault(table, []).append(sql["moved_back"].format(column=column))
    return [sql["move_back"].format(table=table, moves=", ".join(moves)) for table, moves in tables.items()]
