"""Every log line that is emitted, in one table, with the identifiers that an engineer needs during an incident.

No line carries a secret of a source, a payload or an authorisation header: of an event, only its indexed columns go in.
(`secret_offered` shows a secret that nothing uses yet: the operator has to see it somewhere.) Mounted in
another app, lines go to its standard logging. Where Oncehook is the process, `configure` writes them as JSON lines, or
for people on a terminal. `log.py` has how.
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
from oncehook.observability.log import STANDARD, AppLog, JsonLog, console, encode_lines, escape, standard_error

LINES: dict[str, tuple[str, str]] = {
    "accepted": ("info", "A first delivery is committed and acked."),
    "ignored": ("info", "An authentic event that the allow-list leaves out is recorded and acked."),
    "failed": ("warning", "An authentic event without a usable id or type is kept as a dead letter."),
    "duplicate": ("info", "An event that was here before is acked again."),
    "other_body": ("warning", "An id came again with another body; the first one stays."),
    "rejected": ("warning", "A delivery is refused before anything is stored."),
    "unavailable": ("error", "An event could not be recorded; the sender was asked to try again."),
    "door_failed": ("error", "A bug of Oncehook's own: the sender was asked to try again. Please report it."),
    "handshake": ("info", "A provider's handshake is answered."),
    "secret_offered": (
        "warning",
        "Somebody offered a secret in a handshake that nobody signs. It is not used: if you are creating this webhook "
        "now, put it into the source's `secrets`.",
    ),
    "key_not_renewed": ("warning", "A signing key could not be renewed. The old one counts while its host is silent."),
    "waits_for_secret": ("warning", "A source has no secret yet: it answers its handshake and refuses every event."),
    "deliveries_dropped": ("warning", "Duplicates were acked, but too many came at once to note each."),
    "deliveries_lost": ("error", "Noting duplicates failed; the receipts themselves are untouched."),
    "samples_lost": ("warning", "A sample of a refused request could not be kept for the doctor."),
    "uses_not_counted": ("warning", "Which secrets verified could not be written; it is tried again."),
    "refusals_not_counted": ("warning", "How many deliveries were refused could not be written; it is tried again."),
    "acks_not_counted": ("warning", "How long acks took could not be written; it is tried again."),
    "processed": ("info", "A handler's work and the mark are committed, or nothing had to be done."),
    "retrying": ("warning", "A handler failed; its event will be tried again."),
    "dead": ("error", "A handler failed for the last time; its event is a dead letter."),
    "lease_lost": ("warning", "A handler ended after its lease was lost; nothing of it was kept."),
    "target_paused": ("warning", "A target failed or asked for a pause: its events wait, and use no attempt."),
    "target_back": ("info", "A target that was paused took an event."),
    "source_paused": ("info", "A person has paused a source: its events are accepted, and wait."),
    "source_resumed": ("info", "A person has resumed a source: what waited is worked off."),
    "unhandled": ("warning", "No process has a handler for this type: its events wait. Each type is logged once."),
    "inline_unhandled": (
        "warning",
        "This process has no handler for an inline event: its sender gets 503 and keeps it.",
    ),
    "taken_up": ("info", "A process has a handler for a type that had none: the events that waited are worked off."),
    "unhandled_ignored": ("info", 'Events that no process has a handler for are ignored, by `unhandled = "ignore"`.'),
    "abandoned": ("error", "The provider stopped retrying an inline event; it is a dead letter."),
    "replayed": ("info", "A person had finished events handled again; `selection` says which."),
    "retried_now": ("info", "A person made waiting retries due now; `selection` says which."),
    "rescued": ("warning", "A lease ran out, and its receipt was taken back."),
    "settle_failed": ("error", "What came of an attempt could not be written; the lease will run out."),
    "release_failed": ("warning", "Receipts could not be given back; their leases will run out."),
    "heartbeat_failed": ("warning", "Leases could not be extended this time."),
    "loop_blocked": (
        "error",
        "A handler blocks the event loop: receipts that this process has leased and not started are released. "
        "Make it a plain `def`, or await what it waits for.",
    ),
    "pruned": ("info", "Receipts and payloads that were past their horizon are gone."),
    "email_pruned": ("info", "Email facts that were past `email_retention` are gone; suppressions stay."),
    "prune_waits": ("warning", "The database does not answer; pruning goes on at its next turn."),
    "listen_lost": ("warning", "Other processes cannot wake this worker now; it looks by itself until they can."),
    "pooled": (
        "info",
        "A pooler is before PostgreSQL: no statement is prepared ahead, workers look by themselves.",
    ),
    "durability_risk": (
        "warning",
        "PostgreSQL may lose acked events: `detail` says by which setting, or that its standby is asynchronous.",
    ),
    "worker_waits": ("warning", "The database does not answer; the worker tries again."),
    "background_failed": ("error", "A bug of Oncehook's own in a background loop, which goes on. Please report it."),
    "effect_conflict": ("info", "An event asked for an effect whose key was recorded before; nothing more happens."),
    "stale": ("info", "An event told of an entity something older than what is known; it was left as it is."),
    "effect_done": ("info", "An effect's target has taken it."),
    "effect_retrying": ("warning", "An effect failed; it will be tried again."),
    "effect_dead": ("error", "An effect failed for the last time; `oncehook effects replay` tries it again."),
    "effect_lease_lost": ("warning", "An effect was performed after its lease was lost; another process repeats it."),
    "effect_mark_failed": ("error", "An effect was tried and could not be marked; its lease will run out."),
    "effect_rescued": ("warning", "An effect's lease ran out, and it was taken back."),
    "effect_unregistered": ("warning", "Effects wait for a function that is not registered in this process."),
    "relay_waits": ("warning", "The database does not answer; the relay tries again."),
    "alert_opened": ("error", "A rule's threshold was passed: an incident is open. See [alerts](alerts.md)."),
    "alert_recovered": ("info", "An incident is over: it was below its threshold for long enough."),
    "alert_told": ("info", "A target was told of an incident; `word` says of what."),
    "alert_untold": ("warning", "A target could not be told of an incident; it is tried again."),
    "alert_failed": ("error", "A target could not be told of an incident, and is not tried again."),
    "alerts_wait": ("warning", "The database does not answer; rules are looked at again at the next turn."),
    "lines_dropped": ("warning", "The log was not read quickly enough, and lines were left out."),
    "fast_path_off": (
        "warning",
        "A fast path does not work with the installed library; its plain variant is used.",
    ),
    "connections_closed": ("warning", "Connections that never completed a request were closed."),
    "sign_in_failed": ("warning", "Somebody did not sign in to the dashboard: a wrong password or token."),
    "dashboard_waits": ("warning", "The database did not answer the dashboard, or not in time."),
    "dashboard_failed": ("error", "A bug of Oncehook's own in the dashboard. Please report it."),
    "django_apart": (
        "warning",
        "Django has a database in this process: what its ORM writes is not in a handler's transaction. See "
        "[Django](wsgi.md#django).",
    ),
    "started": ("info", "The inbox is ready to accept."),
    "stop_late": ("error", "Not everything ended in time, the database may not answer: what is left is cut off."),
    "stop_forced": ("error", "The event loop is blocked, so stopping did not even begin: the process ends now."),
    "stopped": ("info", "The inbox has drained and closed."),
    "unverified_source": ("warning", "A source accepts unsigned deliveries from anyone who knows its address."),
}
"""Line → (level, when it is written). docs/logs.md is checked against this table."""

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
