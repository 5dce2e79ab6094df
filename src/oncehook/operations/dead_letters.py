"""Dead letters that died of the same thing are one group, however their errors name what they are about."""

import re
from collections.abc import Iterable
from typing import Any

from oncehook.model.receipt import Receipt
from oncehook.model.rows import DeadLetters, StoredAttempt
from oncehook.model.timestamps import rfc3339

MOST_ERRORS = 10_000
"""How many groups the store returns at most."""

_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\b\w*\d\w*\b")


def shape(error: str | None) -> str:
    """An error without what it is about: the ids, numbers and quoted texts in it."""
    return _PARTICULAR.sub("…", error or "")


def failed_without_attempt(receipt: Receipt, attempts: Iterable[StoredAttempt]) -> str | None:
    """When a receipt became a dead letter, unless an attempt ended so: the receiver or the provider gave it up."""
    failed_at = rfc3339(receipt.failed_at)
    return None if any(row.ended_at == failed_at for row in attempts) else failed_at


def common(errors: Iterable[str]) -> str:
    """Errors of one shape as one: "…" stands where they differ."""
    first, *others = errors
    particulars = [_PARTICULAR.findall(error) for error in (first, *others)]
    if any(len(found) != len(particulars[0]) for found in particulars):
        return shape(first)
    kept = iter(values[0] if len(set(values)) == 1 else "…" for values in zip(*particulars, strict=True))
    return _PARTICULAR.sub(lambda _: next(kept), first)


def grouped(rows: Iterable[DeadLetters]) -> list[dict[str, Any]]:
    """Errors that differ only in what they are about (an id, a number) are one group; the largest first.

    `error` is what all of a group have in common; `last_error` is that of its last one.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row.source, row.handler, shape(row.last_error)
        group = groups.setdefault(key, {**row.as_json(), "receipts": 0, "error": []})
        group["error"].append(row.last_error or "")
        group["receipts"] += row.receipts
        for name in ("first_received_at", "first_failed_at"):
            group[name] = min(group[name], getattr(row, name))
        group["last_failed_at"] = max(group["last_failed_at"], row.last_failed_at)
        if row.last_receipt >= group["last_receipt"]:
            group |= {name: getattr(row, name) for name in ("last_receipt", "last_received_at", "last_error")}
    for group in groups.values():
        group["error"] = common(dict.fromkeys(group["error"]))
    return sorted(groups.values(), key=lambda group: -group["receipts"])
