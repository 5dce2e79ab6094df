"""Backfill: writes receipts of a consumer for events that arrived before it subscribed.

An event is treated as if it arrived now: the filter of its source and those of the consumer apply. Events without a
payload are left out. A receipt that exists stays as it is, so a backfill can be interrupted and repeated.
"""

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from oncehook.config.keyring import KeyRingError
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.rows import StoredConsumer
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.objects.reference import ObjectError
from oncehook.operations.consumers import KNOWN_AFTER
from oncehook.operations.replay import RateLimit, whoami
from oncehook.providers.source import Source
from oncehook.providers.subscriptions import Subscription
from oncehook.store.rows import BackfillEvent, BackfillRange, BackfillRow
from oncehook.store.store import Store

BATCH = 500
"""Events per transaction."""

LATE_COMMIT = 10.0
"""Seconds after which a claim is committed or has failed. `received_at` is the time at which its transaction began."""

NOT_SUBSCRIBED = "not subscribed"
FILTERED = "left out by the source"
GONE = "received or pruned since"
UNREADABLE = "key missing"
NO_OBJECT = "payload object missing"


@dataclass(slots=True)
class Backfilled:
    """The result of a backfill so far.

    `matched` counts the events that the consumer had no receipt of. `created` counts the receipts that a worker will
    handle, `ignored` those that the consumer's filters leave out, and `left` the events without a receipt, by reason.
    """

    matched: int = 0
    created: int = 0
    ignored: int = 0
    left: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        left = dict(sorted(self.left.items()))
        return {"matched": self.matched, "created": self.created, "ignored": self.ignored, "left": left}


Progress = Callable[[Backfilled], None]


@dataclass(frozen=True, slots=True)
class Backfill:
    """A consumer's subscriptions by source, the sources, and the events to give it."""

    events: BackfillRange
    subscriptions: Mapping[str, Subscription]
    sources: Mapping[str, Source]
    known_at: datetime  # when every receiver knows the consumer


async def plan_backfill(
    store: Store,
    rows: Sequence[StoredConsumer],
    sources: Mapping[str, Source],
    *,
    since: datetime,
    source: str | None = None,
    type: str | None = None,
) -> Backfill:
    """Plan a backfill from the subscriptions of a consumer. Raises ConfigurationError if the source is unknown."""
    consumer = rows[0].name
    if source is not None and source not in {row.source for row in rows}:
        names = ", ".join(row.source for row in rows)
        raise ConfigurationError(f"the consumer {consumer} does not subscribe to {source}; its sources are {names}")
    rows = [row for row in rows if source in (None, row.source)]
    missing = [row.source for row in rows if row.source not in sources]
    if missing:
        raise ConfigurationError(
            f"the source {missing[0]} is not configured here, so its filter is unknown: for a source that is defined "
            "in code, pass --app module:inbox; or choose another one with --source"
        )
    made = {row.source: _subscription(row) for row in rows}
    now = await store.operations.now()
    known_at = max(now if not row.registered_at else _time(row.registered_at) for row in rows)
    known_at += timedelta(seconds=KNOWN_AFTER)
    return Backfill(BackfillRange(consumer, tuple(sorted(made)), since, now, type), made, sources, known_at)


def _subscription(row: StoredConsumer) -> Subscription:
    patterns, settings = json.loads(row.patterns), json.loads(row.settings)
    types, where = settings.get("types"), settings.get("where")
    return Subscription(row.name, row.source, patterns=patterns, types=types, where=where)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


async def backfill(
    store: Store,
    plan: Backfill,
    *,
    actor: str | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Backfilled:
    """Write the receipts in batches, oldest events first, at most `rate` events per second.

    Receivers write the receipts of events that arrive during a backfill. Those that did not know a new consumer yet
    are covered too: the last seconds are read again once all of them know it.
    """
    done, actor, run, outcome = Backfilled(), actor or whoami(), secrets.token_hex(8), "stopped"
    detail = {"run": run, "consumer": plan.events.consumer, "selection": _selection(plan.events)}
    if not dry_run:
        await store.operations.audit(actor, "backfill", detail)
    try:
        limit, size = RateLimit(rate), BATCH if rate is None else max(1, min(BATCH, int(rate / 4)))
        async for page in _pages(store, plan, size, dry_run=dry_run):
            await limit.wait()
            await _write(store, plan, page, done, dry_run=dry_run)
            limit.count(len(page))
            if progress is not None:
                progress(done)
        outcome = "done"
    finally:
        if not dry_run:
            with contextlib.suppress(OncehookError):  # the receipts of whole batches are written
                ended = {**detail, "outcome": outcome, **done.as_json()}
                await asyncio.shield(store.operations.audit(actor, "backfill_ended", ended))
    return done


def _selection(events: BackfillRange) -> dict[str, Any]:
    selection = {"sources": list(events.sources), "type": events.type, "since": rfc3339(events.since)}
    return {name: value for name, value in selection.items() if value is not None}


async def _pages(store: Store, plan: Backfill, size: int, *, dry_run: bool) -> AsyncIterator[list[BackfillEvent]]:
    """Yield all events, and then those that arrived before every receiver knew the consumer."""
    again, seen = plan.events.until - timedelta(seconds=LATE_COMMIT), set[int]()
    async for page in _range(store, plan.events, size):
        seen.update(event.receipt for event in page if event.received_at >= again)
        yield page
    if not dry_run:
        await asyncio.sleep(max(0.0, (plan.known_at - await store.operations.now()).total_seconds()))
        last = replace(plan.events, since=max(plan.events.since, again), until=await store.operations.now())
        async for page in _range(store, last, size):
            late = [event for event in page if event.receipt not in seen]
            if late:
                yield late


async def _range(store: Store, events: BackfillRange, size: int) -> AsyncIterator[list[BackfillEvent]]:
    after = (events.since, 0)
    while page := await store.backfill.page(events, after, size):
        yield page
        after = (page[-1].received_at, page[-1].receipt)


async def _write(
    store: Store, plan: Backfill, page: Sequence[BackfillEvent], done: Backfilled, *, dry_run: bool
) -> None:
    rows = await _rows(store, plan, page, done)
    done.matched += len(page)
    if dry_run:
        statuses: list[str] = [row.status for row in rows]
    else:
        inserted = await store.backfill.insert(plan.events.consumer, rows) if rows else {}
        if inserted is None:
            raise ConfigurationError(f"the consumer {plan.events.consumer} was removed during the backfill")
        statuses = list(inserted.values())
        done.left[GONE] += len(rows) - len(statuses)
        done.left = +done.left
        if statuses:
            await store.wakeups.notify()
    created = statuses.count(State.RECEIVED)
    done.created += created
    done.ignored += len(statuses) - created


async def _rows(store: Store, plan: Backfill, page: Sequence[BackfillEvent], done: Backfilled) -> list[BackfillRow]:
    """Return the receipts for a page of events, and count the events that get none."""
    payloads = await _payloads(store, plan, page)
    rows = []
    for event in page:
        parsed = payloads.get(event.receipt)
        if isinstance(parsed, OncehookError):
            done.left[UNREADABLE if isinstance(parsed, KeyRingError) else NO_OBJECT] += 1
            continue
        source = plan.sources[event.source]
        reader = source.reader.for_tenant(event.tenant) if event.tenant else source.reader
        if reader.filter_reason(parsed, event.type, event.object_id) is not None:
            done.left[FILTERED] += 1
            continue
        facts = reader.facts(event.type, event.object_id)
        claim = plan.subscriptions[event.source].claim(event.type, parsed, facts, None)
        if claim is None:
            done.left[NOT_SUBSCRIBED] += 1
            continue
        reason = claim.last_error
        if source.settings.encrypt:
            reason = store.encryption.seal_error(reason, event.source)
        rows.append(BackfillRow(event.receipt, claim.status.value, reason))
    return rows


async def _payloads(store: Store, plan: Backfill, page: Sequence[BackfillEvent]) -> dict[int, Any]:
    """Return the parsed payloads that a filter reads, or the error of one that cannot be decrypted."""
    events = {event.receipt: event for event in page if _reads_payload(plan, event.source)}
    parsed: dict[int, Any] = {}
    for row in await store.backfill.payloads(list(events)) if events else ():
        event = events[row.receipt]
        try:
            body, headers = await store.bodies.read(event, row.body, row.headers, row.object)
        except (KeyRingError, ObjectError) as error:
            parsed[row.receipt] = error
        else:
            parsed[row.receipt] = plan.sources[event.source].reader.parse_stored(body, json.loads(headers))
    return parsed


def _reads_payload(plan: Backfill, source: str) -> bool:
    return plan.subscriptions[source].where is not None or plan.sources[source].reader.where is not None
