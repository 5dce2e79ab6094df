"""Secret rotation: which secrets still verify deliveries, which can be removed, and which was removed too early."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oncehook.model.rows import SecretUse
from oncehook.model.values import as_duration
from oncehook.providers.expressions import parse_time
from oncehook.providers.source import CERTIFICATE, Source

QUIET = 3 * 86400.0
"""Seconds without use after which an old secret is safe to remove, unless the provider retries for longer."""


@dataclass(frozen=True, slots=True)
class RemovedSecret:
    """A secret that is no longer configured, but verified a delivery later than every configured secret."""

    source: str
    fingerprint: str
    verified: int
    last_used_at: str

    @property
    def sentence(self) -> str:
        when = self.last_used_at[:19].replace("T", " ") + " UTC"
        deliveries = f"{self.verified:,} {'delivery' if self.verified == 1 else 'deliveries'}"
        return (
            f"No delivery was verified since {when}. The secret {self.fingerprint}, which verified {deliveries} until "
            "then, is no longer configured."
        )


def removed_secret(source: Source, used: Iterable[SecretUse]) -> RemovedSecret | None:
    """Return the secret that was removed too early: no configured secret has verified a delivery since."""
    rows = sorted((row for row in used if row.source == source.name), key=lambda row: row.last_used_at)
    if not source.is_verified or not rows or rows[-1].secret in (*source.fingerprints, CERTIFICATE):
        return None
    row = rows[-1]
    return RemovedSecret(source.name, row.secret, row.verified, row.last_used_at)


def list_secrets(sources: list[Source], used: list[SecretUse]) -> list[dict[str, Any]]:
    """Return a row with advice for each secret that is configured or was used before."""
    uses = {(row.source, row.secret): row for row in used}
    rows = []
    for source in sorted(sources, key=lambda source: source.name):
        if not source.is_verified or source.waits_for_secret or source.needs_tenant:
            continue
        newest = max(
            (
                uses[key].last_used_at
                for fingerprint in source.fingerprints
                if (key := (source.name, fingerprint)) in uses
            ),
            default="",
        )
        for index, fingerprint in enumerate(source.fingerprints):
            row = uses.get((source.name, fingerprint))
            rows.append(
                {
                    "source": source.name,
                    "secret": index,
                    "mark": fingerprint,
                    "verified": row.verified if row else 0,
                    "last_used_at": row.last_used_at if row else None,
                    "advice": _advice(source, row, newest),
                }
            )
        rows += _removed_rows(source, used)
    return rows


def _removed_rows(source: Source, used: list[SecretUse]) -> Iterator[dict[str, Any]]:
    needed_again = removed_secret(source, used)
    for row in used:
        if row.source == source.name and row.secret not in (*source.fingerprints, CERTIFICATE):
            is_needed = needed_again is not None and needed_again.fingerprint == row.secret
            yield {
                "source": source.name,
                "secret": None,
                "mark": row.secret,
                "verified": row.verified,
                "last_used_at": row.last_used_at,
                "advice": "no longer configured, and no delivery was verified since: add it next to the new one"
                if is_needed
                else "no longer configured",
            }


def _advice(source: Source, row: SecretUse | None, newest: str) -> str:
    if len(source.fingerprints) == 1:
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
    return f"{ago}: keep it until {_roughly(needed)} have passed, because {source.provider.title} may retry with it"


def _seconds_between(earlier: str, later: str) -> float:
    return (_read(later) - _read(earlier)).total_seconds()


def _read(text: str) -> datetime:
    time = parse_time(text)
    assert time is not None
    return time


def _roughly(seconds: float) -> str:
    unit = 86400.0 if seconds >= 2 * 86400 else 3600.0 if seconds >= 2 * 3600 else 60.0
    return (
        as_duration(max(1, round(seconds / unit)) * unit)
        .replace("d", " days")
        .replace("h", " hours")
        .replace("m", " min")
    )
