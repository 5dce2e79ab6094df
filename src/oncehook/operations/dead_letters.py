"""Groups dead letters by their error. Errors that differ only in ids, numbers or quoted texts are the same error."""

import re
from collections.abc import Iterable
from typing import Any

from oncehook.model.receipt import Receipt
from oncehook.model.rows import StoredAttempt
from oncehook.model.statistics import DeadLetters
from oncehook.model.timestamps import rfc3339

MAX_ERRORS = 10_000
"""The store returns up to this many distinct errors."""

_VARIABLE_PART = re.compile(r"'[^']*'|\"[^\"]*\"|\b\w*\d\w*\b")


def error_pattern(error: str | None) -> str:
    """Replace the ids, numbers and quoted texts in an error with "…"."""
    return _VARIABLE_PART.sub("…", error or "")


def failed_without_attempt(receipt: Receipt, attempts: Iterable[StoredAttempt]) -> str | None:
    """Return when a receipt became a dead letter without a failed attempt, or None.

    The receiver could not read the event, or the provider stopped retrying it.
    """
    failed_at = rfc3339(receipt.failed_at)
    return None if any(row.ended_at == failed_at for row in attempts) else failed_at


def common_error(errors: Iterable[str]) -> str:
    """Merge errors of the same pattern into one text, with "…" where they differ."""
    first, *others = errors
    parts = [_VARIABLE_PART.findall(error) for error in (first, *others)]
    if any(len(each) != len(parts[0]) for each in parts):
        return error_pattern(first)
    merged = iter(values[0] if len(set(values)) == 1 else "…" for values in zip(*parts, strict=True))
    return _VARIABLE_PART.sub(lambda _: next(merged), first)


def group_by_error(rows: Iterable[DeadLetters]) -> list[dict[str, Any]]:
    """Group dead letters by source, consumer, handler and error pattern, the largest group first.

    `error` is the common text of a group, `last_error` the error of its newest dead letter.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row.source, row.consumer, row.handler, error_pattern(row.last_error)
        group = groups.setdefault(key, {**row.as_json(), "receipts": 0, "error": []})
        group["error"].append(row.last_error or "")
        group["receipts"] += row.receipts
        for name in ("first_received_at", "first_failed_at"):
            group[name] = min(group[name], getattr(row, name))
        group["last_failed_at"] = max(group["last_failed_at"], row.last_failed_at)
        if row.last_receipt >= group["last_receipt"]:
            group |= {name: getattr(row, name) for name in ("last_receipt", "last_received_at", "last_error")}
    for group in groups.values():
        group["error"] = common_error(dict.fromkeys(group["error"]))
    return sorted(groups.values(), key=lambda group: -group["receipts"])
