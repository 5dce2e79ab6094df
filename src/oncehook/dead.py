"""Dead letters that died of the same thing are one group, however their errors name what they are about."""

import re
from collections.abc import Iterable
from typing import Any

_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\b\w*\d\w*\b")


def shape(error: str | None) -> str:
    """An error without what it is about: the ids, numbers and quoted texts in it."""
    return _PARTICULAR.sub("…", error or "")


def grouped(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors that differ only in what they are about (an id, a number) are one group; the largest first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["source"], row["handler"], shape(row["last_error"])
        group = groups.setdefault(key, {**row, "receipts": 0})
        group["receipts"] += row["receipts"]
        group["first_received_at"] = min(group["first_received_at"], row["first_received_at"])
        if row["last_receipt"] >= group["last_receipt"]:
            group |= {name: row[name] for name in ("last_receipt", "last_received_at", "last_error")}
    return sorted(groups.values(), key=lambda group: -group["receipts"])
