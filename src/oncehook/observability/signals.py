"""Writes log lines with the identifiers that an engineer needs during an incident, and counts the same events.

A line about an event carries only the indexed columns of the event: never a secret of a source, a payload or an
authorization header. The exception is `secret_offered`: the operator needs that secret, and nothing uses it yet.

An inbox that is mounted in another app logs through the app's standard logging. In a process of Oncehook, `configure`
chooses JSON lines or text for a terminal. `log_events.py` has the table of events, `log.py` writes the lines.
"""

import io
import logging
import re
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.claim import Claim, Claimed
from oncehook.model.effect import EffectState, ExpiredEffect, LeasedEffect, SettledEffect
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN, ConsumerFacts
from oncehook.model.lease import Leased, Settled
from oncehook.model.rows import AbandonedReceipt, ExpiredReceipt
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.observability import metrics
from oncehook.observability.log import STANDARD, AppLog, JsonLog, console, encode_lines, escape, standard_error
from oncehook.observability.log_events import LOG_EVENTS

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_EVENT_LEVELS = {event: _LEVELS[level] for event, (level, _) in LOG_EVENTS.items()}
_threshold: int | None = None  # None: the app's logging decides
_json_stream: TextIO | io.TextIOBase | None = None


_log: Any = AppLog()


def configure(level: str = "info", format: str = "auto", stream: TextIO | io.TextIOBase | None = None) -> None:
    """Write log lines to `stream`, by default standard error. For processes that the `oncehook` command starts."""
    global _json_stream, _log, _threshold
    _threshold = _LEVELS[level]
    stream = stream or standard_error()
    is_for_people = format == "console" or (format == "auto" and stream.isatty())
    _json_stream = None if is_for_people else stream
    _log = console(stream, _threshold) if is_for_people else JsonLog(stream)
    # asyncpg's pool logs tracebacks while the database is down. Oncehook's own lines already report the outage.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


def is_enabled(event: str) -> bool:
    """Return whether this event would be logged. The receiver builds no line for other events."""
    level = _EVENT_LEVELS[event]
    return STANDARD.isEnabledFor(level) if _threshold is None else level >= _threshold


def emit(event: str, **fields: Any) -> None:
    """Log one event of the table `LOG_EVENTS`."""
    if is_enabled(event):
        with suppress(OSError, ValueError):  # a full disk or a closed pipe must not change a response
            getattr(_log, LOG_EVENTS[event][0])(event, **fields)


def log_background_failure(loop: str, error: Exception) -> None:
    """Log an unexpected error of a background loop: its class and location, never its text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    emit("background_failed", loop=loop, error=type(error).__name__, where=where)


class EventLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The fields of every line about an event."""

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
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    level: str = ""
    timestamp: str = ""


def record_claims(pairs: Sequence[tuple[Claim, Claimed]]) -> None:
    """Count and log the outcome of each claim. This is on the hot path, so JSON lines are encoded together."""
    for (fresh, source), number in Counter((outcome.fresh, claim.source) for claim, outcome in pairs).items():
        metrics.count("oncehook_received_total" if fresh else "oncehook_duplicates_total", source, by=number)
    _write_lines([line for claim, outcome in pairs if (line := _event_line(claim, outcome)) is not None])


def record_spooled(claims: Sequence[Claim]) -> None:
    """Log the events of a delivery that is in the spool. They have no receipt yet."""
    if is_enabled("spooled"):
        for claim in claims:
            emit(
                "spooled",
                source=claim.source,
                provider=claim.provider,
                event_id=claim.event_id,
                type=claim.type,
                object_id=claim.object_id,
                receipt=None,
                status=claim.status.value,
                correlation_id=claim.correlation_id,
                **({"tenant": claim.tenant} if claim.tenant else {}),
            )


def _write_lines(lines: Sequence[EventLine]) -> None:
    if _json_stream is None:
        for line in lines:
            emit(line.event, **_fields(line))
        return
    now = rfc3339(SYSTEM.datetime()) or ""
    for line in lines:
        line.level, line.timestamp = LOG_EVENTS[line.event][0], now
    encoded = encode_lines(lines)
    if not encoded.isascii() or b"\x7f" in encoded:  # rare: a character that has to be escaped
        encoded = encode_lines([escape(None, "", _all_fields(line)) for line in lines])
    with suppress(OSError, ValueError):
        _json_stream.write(encoded.decode())
        _json_stream.flush()


CLAIM_EVENTS = {State.RECEIVED: "accepted", State.IGNORED: "ignored", State.FAILED: "unreadable"}
"""The log event of a first delivery, by the status of its new receipt."""

DUPLICATE_EVENTS = {True: "duplicate", False: "body_changed"}
"""The log event of a duplicate, by whether its body is the same."""


def _event_line(claim: Claim, outcome: Claimed) -> EventLine | None:
    event = CLAIM_EVENTS[claim.status] if outcome.fresh else DUPLICATE_EVENTS[outcome.same_body]
    if not is_enabled(event):
        return None
    return EventLine(
        event=event,
        source=claim.source,
        provider=claim.provider,
        event_id=claim.event_id,
        type=claim.type,
        object_id=claim.object_id,
        receipt=outcome.receipt,
        status=outcome.status.value,
        correlation_id=claim.correlation_id or str(outcome.receipt),
        delivery_id=claim.delivery_id,
        tenant=claim.tenant or msgspec.UNSET,
    )


def _fields(line: EventLine) -> dict[str, Any]:
    fields = _all_fields(line)
    for name in ("event", "level", "timestamp"):
        del fields[name]
    return fields


def _all_fields(line: EventLine) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(line).items() if value is not msgspec.UNSET}


class AttemptLine(EventLine, kw_only=True, omit_defaults=False):
    """The fields of a line about an attempt."""

    consumer: str | msgspec.UnsetType = msgspec.UNSET  # left out for `main`
    attempt: int = 0
    outcome: str = ""
    handler: str | None = None
    error: str | None = None


ATTEMPT_EVENTS = {State.PROCESSED: "processed", State.RETRYING: "retrying", State.FAILED: "dead_letter"}
"""The log event of an attempt, by the status that it ends with."""


attempt_observers: list[Callable[[Leased, Settled, bool], None]] = []
"""Called after each attempt, in the event loop: they must not block or raise."""


def record_attempt(leased: Leased, settled: Settled, is_written: bool) -> None:
    """Count and log the result of an attempt. `is_written` is False if its lease was lost before it settled."""
    source, consumer = leased.source, leased.consumer
    metrics.count("oncehook_processed_total", source, consumer, settled.outcome if is_written else "lease lost")
    if settled.seconds is not None and settled.handler is not None:
        metrics.observe("oncehook_handle_seconds", source, consumer, settled.handler, value=settled.seconds)
    event = ATTEMPT_EVENTS[settled.status] if is_written else "lease_lost"
    if is_enabled(event):
        line = AttemptLine(
            event=event,
            source=source,
            consumer=msgspec.UNSET if consumer == MAIN else consumer,
            provider=leased.provider,
            event_id=leased.event_id,
            type=leased.type,
            object_id=leased.object_id,
            receipt=leased.receipt,
            status=settled.status.value,
            correlation_id=leased.correlation_id or str(leased.receipt),
            delivery_id=leased.delivery_id,
            tenant=leased.tenant or msgspec.UNSET,
            attempt=leased.attempt,
            outcome=settled.outcome,
            handler=settled.handler,
            error=settled.error,
        )
        if _json_stream is not None:
            _write_lines([line])
        else:
            emit(event, **_fields(line), **_error_location(settled.traceback))
    for observe in attempt_observers:
        observe(leased, settled, is_written)


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def _error_location(traceback_text: str | None) -> dict[str, str]:
    """Return the file and line that raised the error, from an attempt's traceback."""
    frames = _FRAME.findall(traceback_text or "")
    return {"where": f"{Path(frames[-1][0]).name}:{frames[-1][1]}"} if frames else {}


def record_expired_lease(row: ExpiredReceipt, settled: Settled) -> None:
    """Count and log an expired lease, and log the dead letter if this was the last attempt."""
    is_dead_letter = settled.status is State.FAILED
    outcome = "failed" if is_dead_letter else settled.outcome
    metrics.count("oncehook_processed_total", row.source, row.consumer, outcome)
    fields = _receipt_fields(row, settled.status)
    emit("lease_expired", **fields)
    if is_dead_letter:
        emit("dead_letter", **fields, handler=settled.handler, error=settled.error)


def record_abandoned_event(row: AbandonedReceipt) -> None:
    """Log an inline event that became a dead letter because its provider stopped retrying."""
    emit("abandoned", **_receipt_fields(row, State.FAILED), handler=row.handler, error=row.last_error)


def record_dead_lettered_event(row: AbandonedReceipt) -> None:
    """Log an event that became a dead letter because the queue gave up its message."""
    emit("dead_lettered", **_receipt_fields(row, State.FAILED), handler=row.handler, error=row.last_error)


def _receipt_fields(row: ExpiredReceipt | AbandonedReceipt, status: State) -> dict[str, Any]:
    """Return the fields of an event's line from its receipt."""
    names = ("source", "provider", "event_id", "type", "object_id", "receipt")
    fields = {name: getattr(row, name) for name in names} | _consumer_field(row) | {"status": status.value}
    fields["correlation_id"] = row.correlation_id or str(row.receipt)
    if row.delivery_id:
        fields["delivery_id"] = row.delivery_id
    if row.tenant:
        fields["tenant"] = row.tenant
    return fields | {"attempt": row.attempt}


def _consumer_field(event: ConsumerFacts) -> dict[str, str]:
    """Return the field `consumer`, which lines about `main` do not have."""
    return {} if event.consumer == MAIN else {"consumer": event.consumer}


NOOPS = {
    "effect": ("effect_conflict", "oncehook_effect_conflicts_total"),
    "stale": ("stale_event", "oncehook_stale_total"),
}
"""Reason of a no-op → its log event and metric."""


def record_noop(leased: Leased, reason: str, scope: str, key: str) -> None:
    """Count and log a committed no-op: a repeated effect, or a stale event."""
    event, metric = NOOPS[reason]
    metrics.count(metric, leased.source, leased.consumer)
    emit(
        event,
        source=leased.source,
        **_consumer_field(leased),
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


ADDRESSES = frozenset({"http", "broker", "broker-topic"})
"""The kinds of effects whose target is an address."""


def redacted_target(kind: str, target: str) -> str:
    """Return an effect's target for a log line. A URL is cut to its origin, because its path may hold a secret."""
    if kind not in ADDRESSES:
        return target
    scheme, _, rest = target.partition("://")
    return f"{scheme}://" + re.split(r"[/?#\\]", rest)[0].rpartition("@")[2]


EFFECT_EVENTS = {
    EffectState.DONE: "effect_done",
    EffectState.RETRYING: "effect_retrying",
    EffectState.FAILED: "effect_failed",
}
"""The log event of an effect's attempt, by the status that it ends with."""


def record_effect_attempt(leased: LeasedEffect, settled: SettledEffect, is_written: bool) -> None:
    """Log the result of an effect's attempt. `is_written` is False if its lease was lost before it settled."""
    emit(
        EFFECT_EVENTS[settled.status] if is_written else "effect_lease_lost",
        source=leased.source,
        receipt=leased.receipt,
        effect=leased.id,
        key=leased.key,
        target=redacted_target(leased.kind, leased.target),
        status=settled.status.value,
        attempt=leased.attempt,
        error=settled.error,
    )


def record_expired_effect_lease(row: ExpiredEffect, settled: SettledEffect) -> None:
    """Log an expired lease of an effect, and the failed effect if this was the last attempt."""
    fields = {"effect": row.id, "key": row.key, "target": redacted_target(row.kind, row.target)}
    emit("effect_lease_expired", **fields, status=settled.status.value, attempt=row.attempt)
    if settled.status is EffectState.FAILED:
        emit("effect_failed", **fields, status=settled.status.value, attempt=row.attempt, error=settled.error)


def record_unavailable(source: str, detail: str, *, is_logged: bool = False) -> None:
    """Count a delivery that got 503 without a claim, and log it unless that is already done."""
    metrics.count("oncehook_rejected_total", source, "unavailable")
    if not is_logged:
        emit("unavailable", source=source, detail=detail)


def record_failed_claim(claims: Sequence[Claim], error: Unavailable) -> None:
    """Count and log an authentic delivery that could not be recorded."""
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


def record_rejection(source: str, reason: str, detail: str, tenant: str = "") -> None:
    """Count and log a rejected delivery. `source` is the name of a configured source, or "unknown".

    `tenant` is the one in the address, also if it does not exist. It is logged and never a label.
    """
    metrics.count("oncehook_rejected_total", source, reason)
    emit("rejected", source=source, reason=reason, detail=detail, **({"tenant": tenant} if tenant else {}))
