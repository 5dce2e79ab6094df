"""Rotating secrets: which of them still verify, which may be taken out, and which was taken out too early."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oncehook.model.rows import SecretUse
from oncehook.model.values import as_duration
from oncehook.providers.expressions import parse_time
from oncehook.providers.source import CERTIFICATE, Source

QUIET = 3 * 86400.0
"""Seconds without a use after which an old secret is said to be no longer needed, or the provider's horizon."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A secret that verified deliveries later than every secret that is configured now."""

    source: str
    mark: str
    verified: int
    last_used_at: str

    @property
    def sentence(self) -> str:
        when = self.last_used_at[:19].replace("T", " ") + " UTC"
        deliveries = f"{self.verified:,} {'delivery' if self.verified == 1 else 'deliveries'}"
        return (
            f"No delivery has verified since {when}. The secret {self.mark}, which verified {deliveries} until then, "
            "is not configured any more."
        )


def removed_secret(source: Source, used: Iterable[SecretUse]) -> Removed | None:
    """The secret that was taken out too early: no configured one has verified a delivery after it."""
    rows = sorted((row for row in used if row.source == source.name), key=lambda row: row.last_used_at)
    if not source.is_verified or not rows or rows[-1].secret in (*source.marks, CERTIFICATE):
        return None
    row = rows[-1]
    return Removed(source.name, row.secret, row.verified, row.last_used_at)


def list_secrets(sources: list[Source], used: list[SecretUse]) -> list[dict[str, Any]]:
    """A row for each configured secret and each that was, and a word on what to do with it."""
    uses = {(row.source, row.secret): row for row in used}
    rows = []
    for source in sorted(sources, key=lambda source: source.name):
        if not source.is_verified or source.waits_for_secret:
            continue
        newest = max(
            (uses[key].last_used_at for mark in source.marks if (key := (source.name, mark)) in uses), default=""
        )
        for index, mark in enumerate(source.marks):
            row = uses.get((source.name, mark))
            rows.append(
                {
                    "source": source.name,
                    "secret": index,
                    "mark": mark,
                    "verified": row.verified if row else 0,
                    "last_used_at": row.last_used_at if row else None,
                    "advice": _advice(source, row, newest),
                }
            )
        rows += _removed(source, used)
    return rows


def _removed(source: Source, used: list[SecretUse]) -> Iterator[dict[str, Any]]:
    missed = removed_secret(source, used)
    for row in used:
        if row.source == source.name and row.secret not in (*source.marks, CERTIFICATE):
            needed = missed is not None and missed.mark == row.secret
            yield {
                "source": source.name,
                "secret": None,
                "mark": row.secret,
                "verified": row.verified,
                "last_used_at": row.last_used_at,
                "advice": "not configured any more, and none has verified since: add it beside the new one"
                if needed
                else "not configured any more",
            }


def _advice(source: Source, row: SecretUse | None, newest: str) -> str:
    if len(source.marks) == 1:
        return "in use" if row else "not used yet"
    if row is None:
        return "never used: newly added, or safe to remove" if newest else "not used yet"
    if row.last_used_at == newest:
        return "in use"
    quiet = _seconds_between(row.last_used_at, row.now)
    needed = max(QUIET, source.provider.horizon or 0.0)
    ago = f"last used {_roughly(quiet)} ago"
    if quiet > needed:
        return f"{ago}: safe to remove"
    return f"{ago}: keep it until {_roughly(needed)} have passed, {source.provider.title} may retry with it"


def _seconds_between(earlier: str, later: str) -> float:
    return (_read(later) - _read(earlier)).total_seconds()


def _read(text: str) -> datetime:
    found = parse_time(text)
    assert found is not None
    return found


def _roughly(seconds: float) -> str:
    unit = 86400.0 if seconds >= 2 * 86400 else 3600.0 if seconds >= 2 * 3600 else 60.0
    return (
        as_duration(max(1, round(seconds / unit)) * unit)
        .replace("d", " days")
        .replace("h", " hours")
        .replace("m", " min")
    )
