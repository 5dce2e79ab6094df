"""Writes log lines and counts what they tell, with the identifiers that an engineer needs during an incident.

No line carries a secret of a source, a payload or an authorisation header: of an event, only its indexed columns go in.
(`secret_offered` shows a secret that nothing uses yet: the operator has to see it somewhere.) Mounted in
another app, lines go to its standard logging. Where Oncehook is the process, `configure` writes them as JSON lines, or
for people on a terminal. `lines.py` has the table of lines, `log.py` how they are written.
"""

import io
import logging
import re
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.claim import Claim, Claimed
from oncehook.model.effect import EffectState, ExpiredEffect, LeasedEffect, SettledEffect
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Leased, Settled
from oncehook.model.rows import AbandonedReceipt, ExpiredReceipt
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.observability import metrics
from oncehook.observability.lines import LINES
from oncehook.observability.log import STANDARD, AppLog, JsonLog, console, encode_lines, escape, standard_error

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NUMBERS = {line: _LEVELS[level] for line, (level, _) in LINES.items()}
_threshold: int | None = None  # None: the app's own logging decides
_json_stream: TextIO | io.TextIOBase | None = None


_log: Any = AppLog()


def configure(level: str = "info", format: str = "auto", stream: TextIO | io.TextIOBase | None = None) -> None:
    """Write lines to `stream` (standard error), for a process that is Oncehook's own."""
    global _json_stream, _log, _threshold
    _threshold = _LEVELS[level]
    stream = stream or standard_error()
    is_for_people = format == "console" or (format == "auto" and stream.isatty())
    _json_stream = None if is_for_people else stream
    _log = console(stream, _threshold) if is_for_people else JsonLog(stream)
    # Its pool writes tracebacks while the database is away: `unavailable` and `worker_waits` say so, in one line.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


def is_on(line: str) -> bool:
    """Whether a line would be written, so that the door need not gather what nobody reads."""
    number = _NUMBERS[line]
    return STANDARD.isEnabledFor(number) if _threshold is None else number >= _threshold


def emit(line: str, **fields: Any) -> None:
    """Write one line of the table."""
    if is_on(line):
        with suppress(OSError, ValueError):  # a full disk or a closed pipe changes no answer
            getattr(_log, LINES[line][0])(line, **fields)


def background_failed(loop: str, error: Exception) -> None:
    """One line for an error that nobody expected there: where it was, never what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    emit("background_failed", loop=loop, error=type(error).__name__, where=where)


class EventLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What every line about an event carries."""

    event: str
    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    receipt: int
    status: str
    correlation_id: str
    delivery_id: str | None = None
    level: str = ""
    timestamp: str = ""


def claimed(pairs: Sequence[tuple[Claim, Claimed]]) -> None:
    """A count and a line for what became of each event at the door. Every event passes here: JSON takes a short way."""
    for (fresh, source), number in Counter((outcome.fresh, claim.source) for claim, outcome in pairs).items():
        metrics.count("oncehook_received_total" if fresh else "oncehook_duplicates_total", source, by=number)
    _write([line for claim, outcome in pairs if (line := _event_line(claim, outcome)) is not None])


def _write(lines: Sequence[EventLine]) -> None:
    if _json_stream is None:
        for line in lines:
            emit(line.event, **_fields(line))
        return
    now = rfc3339(SYSTEM.datetime()) or ""
    for line in lines:
        line.level, line.timestamp = LINES[line.event][0], now
    encoded = encode_lines(lines)
    if not encoded.isascii() or b"\x7f" in encoded:  # nearly always they are clean; else what is not is escaped
        encoded = encode_lines([escape(None, "", msgspec.structs.asdict(line)) for line in lines])
    with suppress(OSError, ValueError):
        _json_stream.write(encoded.decode())
        _json_stream.flush()


def _event_line(claim: Claim, outcome: Claimed) -> EventLine | None:
    if not outcome.fresh:
        line = "duplicate" if outcome.same_body else "other_body"
    else:
        line = "accepted" if claim.status is State.RECEIVED else claim.status.value
    if not is_on(line):
        return None
    return EventLine(
        event=line,
        source=claim.source,
        provider=claim.provider,
        event_id=claim.event_id,
        type=claim.type,
        object_id=claim.object_id,
        receipt=outcome.receipt,
        status=outcome.status.value,
        correlation_id=claim.correlation_id or str(outcome.receipt),
        delivery_id=claim.delivery_id,
    )


def _fields(line: EventLine) -> dict[str, Any]:
    fields = msgspec.structs.asdict(line)
    for name in ("event", "level", "timestamp"):
        del fields[name]
    return fields


class AttemptLine(EventLine, kw_only=True, omit_defaults=False):
    """What a line about an attempt carries besides."""

    attempt: int = 0
    outcome: str = ""
    handler: str | None = None
    error: str | None = None


WORDS = {State.PROCESSED: "processed", State.RETRYING: "retrying", State.FAILED: "dead"}


def settled(leased: Leased, done: Settled, landed: bool) -> None:
    """A count and a line for what came of an attempt."""
    metrics.count("oncehook_processed_total", leased.source, done.outcome if landed else "lease lost")
    if done.seconds is not None and done.handler is not None:
        metrics.observe("oncehook_handle_seconds", leased.source, done.handler, value=done.seconds)
    line = WORDS[done.status] if landed else "lease_lost"
    if is_on(line):
        written = AttemptLine(
            event=line,
            source=leased.source,
            provider=leased.provider,
            event_id=leased.event_id,
            type=leased.type,
            object_id=leased.object_id,
            receipt=leased.receipt,
            status=done.status.value,
            correlation_id=leased.correlation_id or str(leased.receipt),
            delivery_id=leased.delivery_id,
            attempt=leased.attempt,
            outcome=done.outcome,
            handler=done.handler,
            error=done.error,
        )
        if _json_stream is not None:
            _write([written])
        else:
            emit(line, **_fields(written), **_where(done.traceback))


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def _where(told: str | None) -> dict[str, str]:
    """The file and line that raised, out of an attempt's traceback."""
    frames = _FRAME.findall(told or "")
    return {"where": f"{Path(frames[-1][0]).name}:{frames[-1][1]}"} if frames else {}


def rescued(row: ExpiredReceipt, done: Settled) -> None:
    """A count and a line for a receipt whose lease ran out, and one more if that was its last attempt."""
    is_dead = done.status is State.FAILED
    metrics.count("oncehook_processed_total", row.source, "failed" if is_dead else done.outcome)
    about = _about_row(row, done.status)
    emit("rescued", **about)
    if is_dead:
        emit("dead", **about, handler=done.handler, error=done.error)


def abandoned(row: AbandonedReceipt) -> None:
    """A line for an inline event that became a dead letter because its provider stopped retrying."""
    emit("abandoned", **_about_row(row, State.FAILED), handler=row.handler, error=row.last_error)


def _about_row(row: ExpiredReceipt | AbandonedReceipt, status: State) -> dict[str, Any]:
    """The fields of an event's line, from a row of its receipt."""
    names = ("source", "provider", "event_id", "type", "object_id", "receipt")
    about = {name: getattr(row, name) for name in names} | {"status": status.value}
    about["correlation_id"] = row.correlation_id or str(row.receipt)
    if row.delivery_id:
        about["delivery_id"] = row.delivery_id
    return about | {"attempt": row.attempt}


NOOPS = {
    "effect": ("effect_conflict", "oncehook_effect_conflicts_total"),
    "stale": ("stale", "oncehook_stale_total"),
}


def noop(leased: Leased, reason: str, scope: str, key: str) -> None:
    """A count and a line for what an event asked for and did not get, once that is committed."""
    line, metric = NOOPS[reason]
    metrics.count(metric, leased.source)
    emit(
        line,
        source=leased.source,
        provider=leased.provider,
        event_id=leased.event_id,
        type=leased.type,
        object_id=leased.object_id,
        receipt=leased.receipt,
        status=State.PROCESSED.value,
        correlation_id=leased.correlation_id or str(leased.receipt),
        scope=scope,
        key=key,
    )


def target_told(kind: str, target: str) -> str:
    """An effect's target as a line may have it: of an address the origin alone, for its path may hold a secret."""
    scheme, _, rest = target.partition("://")
    return target if kind != "http" else f"{scheme}://" + re.split(r"[/?#\\]", rest)[0].rpartition("@")[2]


def performed(leased: LeasedEffect, done: SettledEffect, landed: bool) -> None:
    """One line for what came of an attempt at an effect."""
    words = {
        EffectState.DONE: "effect_done",
        EffectState.RETRYING: "effect_retrying",
        EffectState.FAILED: "effect_dead",
    }
    emit(
        words[done.status] if landed else "effect_lease_lost",
        source=leased.source,
        receipt=leased.receipt,
        effect=leased.id,
        key=leased.key,
        target=target_told(leased.kind, leased.target),
        status=done.status.value,
        attempt=leased.attempt,
        error=done.error,
    )


def effect_rescued(row: ExpiredEffect, done: SettledEffect) -> None:
    """One line for an effect whose lease ran out, and one more if that was its last attempt."""
    about = {"effect": row.id, "key": row.key, "target": target_told(row.kind, row.target)}
    emit("effect_rescued", **about, status=done.status.value, attempt=row.attempt)
    if done.status is EffectState.FAILED:
        emit("effect_dead", **about, status=done.status.value, attempt=row.attempt, error=done.error)


def unavailable(source: str, detail: str) -> None:
    """A count and a line for a delivery that was told to come again."""
    metrics.count("oncehook_rejected_total", source, "unavailable")
    emit("unavailable", source=source, detail=detail)


def unclaimed(claims: Sequence[Claim], error: Unavailable) -> None:
    """A count and a line for a delivery that was authentic and could not be recorded."""
    first = claims[0]
    metrics.count("oncehook_rejected_total", first.source, "unavailable")
    emit(
        "unavailable",
        source=first.source,
        provider=first.provider,
        event_id=first.event_id,
        type=first.type,
        object_id=first.object_id,
        receipt=None,
        status=None,
        correlation_id=first.correlation_id,
        events=len(claims),
        detail=error.detail,
    )


def rejected(source: str, reason: str, detail: str) -> None:
    """A count and a line for a delivery that is refused. `source` is one of ours, or "unknown"."""
    metrics.count("oncehook_rejected_total", source, reason)
    emit("rejected", source=source, reason=reason, detail=detail)
