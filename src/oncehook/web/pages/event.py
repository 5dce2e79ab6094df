"""The page of one event: its payload, its timeline, and the actions on it."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.handlers.order import entities_of
from oncehook.model.effect import EffectFilter, StoredNoop
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.rows import ConsumerReceipt, StoredAttempt, StoredDuplicate
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import failed_without_attempt
from oncehook.operations.forget import forget
from oncehook.operations.payloads import read_payload
from oncehook.operations.rehearse import DIRECT_CALLS_NOTE, Rehearsal
from oncehook.operations.replay import obstacle, replay
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from oncehook.web.event import CHANGED, MAX_EFFECTS, download_payload, find_event, find_event_to_show, run_retry_now
from oncehook.web.page import Action, Context, Page, Problem, principal
from oncehook.web.show import as_curl, as_send, pretty, shorten

MAX_RELATED = 20


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One step in the life of an event."""

    at: str
    kind: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    traceback: str | None = None


async def show(context: Context, request: Request) -> Response:
    receipt, store = await find_event_to_show(context, request)
    return await _render(context, request, receipt, store)


async def _render(
    context: Context, request: Request, receipt: Receipt, store: Store, *, rehearsal: Rehearsal | None = None
) -> Response:
    payload, unreadable = await read_payload(store, receipt.receipt)
    base = context.receiver_url(request)
    body, is_cut = pretty(payload.body) if payload else ("", False)
    has_payload = payload is not None or unreadable is not None
    replay_obstacle = obstacle(receipt.status, has_type=receipt.type is not None, has_payload=has_payload)
    return context.render(
        request,
        "event.html",
        receipt=receipt,
        consumers=await _consumers(context, store, receipt, has_payload=has_payload),
        payload=payload,
        unreadable=unreadable,
        body=body,
        is_cut=is_cut,
        replay_obstacle=replay_obstacle,
        timeline=await timeline(store, receipt),
        related=await _related_events(store, receipt),
        rehearsal=rehearsal,
        curl=as_curl(receipt, payload, base) if payload else None,
        send=as_send(receipt, base),
        really_made=DIRECT_CALLS_NOTE,
        shorten=shorten,
        done=request.query_params.get("done"),
        entities=await entities_of(store, receipt),
        effects=await store.effects.find(EffectFilter(receipt=receipt.receipt), limit=MAX_EFFECTS),
    )


@dataclass(frozen=True, slots=True)
class ConsumerCard:
    """The state of the event for one consumer, why it cannot be replayed, and whether the consumer is paused."""

    state: ConsumerReceipt
    obstacle: str | None
    is_paused: bool


async def _consumers(context: Context, store: Store, receipt: Receipt, *, has_payload: bool) -> list[ConsumerCard]:
    """One card for each consumer of the event; none if `main` is the only one."""
    states = await store.receipts.consumers_of(receipt)
    if len(states) < 2:
        return []
    paused, has_type = (await context.overview.snapshot())["paused_consumers"], receipt.type is not None
    return [
        ConsumerCard(
            state,
            obstacle(State(state.status), has_type=has_type, has_payload=has_payload),
            state.consumer in paused and state.status in (State.RECEIVED, State.RETRYING),
        )
        for state in states
    ]


async def timeline(store: Store, receipt: Receipt) -> list[TimelineEntry]:
    """Everything that happened to the event, oldest first."""
    delivery = _facts(receipt.delivery_id, "delivery")
    first = TimelineEntry(rfc3339(receipt.received_at) or "", "received", "Received", delivery)
    entries = [_duplicate(row) for row in await store.receipts.duplicates(receipt.receipt)]
    attempts = await store.receipts.attempts(receipt.receipt)
    entries += [_attempt(row) for row in attempts]
    if (failed_at := failed_without_attempt(receipt, attempts)) is not None:
        entries.append(TimelineEntry(failed_at, "failed", "Dead letter", error=receipt.last_error))
    entries += [_noop(row) for row in await store.effects.noops(receipt.receipt)]
    if receipt.replays:
        replays = await store.operations.replays(receipt.receipt)
        entries += [TimelineEntry(row.at, "replayed", "Replayed", (("by", row.actor),)) for row in replays]
    return [first, *sorted(entries, key=lambda entry: entry.at)]


def _facts(value: str | None, name: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),) if value else ()


def _duplicate(row: StoredDuplicate) -> TimelineEntry:
    title = (
        "Duplicate delivery" if row.same_body else "Duplicate delivery with a different body; the first body is kept"
    )
    kind = "duplicate" if row.same_body else "other-body"
    return TimelineEntry(row.received_at, kind, title, _facts(row.delivery_id, "delivery"))


def _attempt(row: StoredAttempt) -> TimelineEntry:
    facts = tuple((name, value) for name in ("handler", "version", "worker") if (value := getattr(row, name)))
    title = f"Attempt {row.number}: {row.outcome}"
    return TimelineEntry(
        row.ended_at or "", row.outcome.replace(" ", "-"), title, facts, error=row.error, traceback=row.traceback
    )


def _noop(row: StoredNoop) -> TimelineEntry:
    """An effect that was not recorded again, or an event that was stale."""
    is_stale = row.reason == "stale"
    title = "Stale: a newer event was handled before" if is_stale else "Effect skipped: it was already recorded"
    return TimelineEntry(row.at, row.reason, title, (("entity" if is_stale else "key", row.key),))


async def _related_events(store: Store, receipt: Receipt) -> list[Receipt]:
    """The newest other events about the same object, as the same consumer has them."""
    if receipt.object_id is None:
        return []
    rows = await store.receipts.find(Filter(object=receipt.object_id, consumer=receipt.consumer), limit=MAX_RELATED + 1)
    return [row for row in rows if row.receipt != receipt.receipt and row.source == receipt.source][:MAX_RELATED]


# -- changes ----------------------------------------------------------------------------------------------------------


async def replay_one(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    result = await replay(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not result.count:
        reason = next(iter(result.left), CHANGED)
        raise Problem(409, "not_replayable", f"The event was not replayed: {reason}.")
    context.runtime.wake_worker()
    return RedirectResponse(f"/events/{receipt.receipt}?done=replayed", 303)


async def retry_one(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    await run_retry_now(context, request, receipt)
    return RedirectResponse(f"/events/{receipt.receipt}?done=retried", 303)


async def rehearse_one(context: Context, request: Request) -> Response:
    """Run the handler in a transaction that is rolled back, and show what it did."""
    receipt = await find_event(context, request)
    await context.store.operations.audit(principal(request).name, "rehearse", {"receipts": [receipt.receipt]})
    rehearsal = await context.runtime.rehearse(receipt)
    return await _render(context, request, receipt, context.store, rehearsal=rehearsal)


async def erase(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    if not await forget(context.store, [receipt.receipt], actor=principal(request).name):
        raise Problem(409, "not_erased", "The payload was already pruned or erased.")
    return RedirectResponse(f"/events/{receipt.receipt}?done=erased", 303)


PAGE = Page(
    "Event",
    "/events/{receipt}",
    (
        Action("GET", "/events/{receipt}", show),
        Action("GET", "/events/{receipt}/raw", download_payload),
        Action("POST", "/events/{receipt}/replay", replay_one, scope="replay"),
        Action("POST", "/events/{receipt}/retry", retry_one, scope="replay"),
        Action("POST", "/events/{receipt}/rehearse", rehearse_one, scope="replay"),
        Action("POST", "/events/{receipt}/erase", erase, scope="admin"),
    ),
)
