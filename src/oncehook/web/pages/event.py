"""One event, whole: what arrived, what was done about it, and what can be done now."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.handlers.order import entities_of
from oncehook.model.effect import EffectFilter, StoredNoop
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.rows import StoredAttempt, StoredDuplicate
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import failed_without_attempt
from oncehook.operations.prune import forget
from oncehook.operations.rehearse import REALLY_MADE, Rehearsal
from oncehook.operations.replay import obstacle, replay
from oncehook.store.rows import Selection
from oncehook.web.event import EFFECTS, find, raw, run_now
from oncehook.web.page import Action, Context, Page, Problem, principal
from oncehook.web.show import as_curl, as_send, pretty, shortened

RELATED = 20


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to an event."""

    at: str
    kind: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    traceback: str | None = None


async def show(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    return await _render(context, request, receipt)


async def _render(
    context: Context, request: Request, receipt: Receipt, *, rehearsal: Rehearsal | None = None
) -> Response:
    payload = await context.store.receipts.payload(receipt.receipt)
    base = context.door_url(request)
    body, is_cut = pretty(payload.body) if payload else ("", False)
    why_not = obstacle(receipt.status, typed=receipt.type is not None, kept=payload is not None)
    return context.render(
        request,
        "event.html",
        receipt=receipt,
        payload=payload,
        body=body,
        is_cut=is_cut,
        why_not=why_not,
        moments=await timeline(context, receipt),
        related=await _related(context, receipt),
        rehearsal=rehearsal,
        curl=as_curl(receipt, payload, base) if payload else None,
        send=as_send(receipt, base),
        really_made=REALLY_MADE,
        shortened=shortened,
        done=request.query_params.get("done"),
        entities=await entities_of(context.store, receipt),
        effects=await context.store.effects.find(EffectFilter(receipt=receipt.receipt), limit=EFFECTS),
    )


async def timeline(context: Context, receipt: Receipt) -> list[Moment]:
    """What happened, in the order of time."""
    store = context.store
    first = Moment(rfc3339(receipt.received_at) or "", "received", "Received", _facts(receipt.delivery_id, "delivery"))
    moments = [_duplicate(row) for row in await store.receipts.duplicates(receipt.receipt)]
    attempts = await store.receipts.attempts(receipt.receipt)
    moments += [_attempt(row) for row in attempts]
    if (failed_at := failed_without_attempt(receipt, attempts)) is not None:
        moments.append(Moment(failed_at, "failed", "Dead letter", error=receipt.last_error))
    moments += [_noop(row) for row in await store.effects.noops(receipt.receipt)]
    if receipt.replays:
        replays = await store.operations.replays(receipt.receipt)
        moments += [Moment(row.at, "replayed", "Replayed", (("by", row.actor),)) for row in replays]
    return [first, *sorted(moments, key=lambda moment: moment.at)]


def _facts(value: str | None, name: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),) if value else ()


def _duplicate(row: StoredDuplicate) -> Moment:
    title = "Delivered again" if row.same_body else "Delivered again with another body; the first one stays"
    kind = "duplicate" if row.same_body else "other-body"
    return Moment(row.received_at, kind, title, _facts(row.delivery_id, "delivery"))


def _attempt(row: StoredAttempt) -> Moment:
    facts = tuple((name, value) for name in ("handler", "version", "worker") if (value := getattr(row, name)))
    title = f"Attempt {row.number}: {row.outcome}"
    return Moment(
        row.ended_at or "", row.outcome.replace(" ", "-"), title, facts, error=row.error, traceback=row.traceback
    )


def _noop(row: StoredNoop) -> Moment:
    """What its handler asked for and did not get."""
    is_stale = row.reason == "stale"
    title = "Stale: newer is known" if is_stale else "An effect was not repeated: it was recorded before"
    return Moment(row.at, row.reason, title, (("of" if is_stale else "key", row.key),))


async def _related(context: Context, receipt: Receipt) -> list[Receipt]:
    """The latest events about the same object."""
    if receipt.object_id is None:
        return []
    found = await context.store.receipts.find(Filter(object=receipt.object_id), limit=RELATED + 1)
    return [one for one in found if one.receipt != receipt.receipt and one.source == receipt.source][:RELATED]


# -- changes ----------------------------------------------------------------------------------------------------------


async def replay_one(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    done = await replay(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not done.count:
        why = next(iter(done.left), "changed meanwhile")
        raise Problem(409, "not_replayable", f"It was not replayed: {why}.")
    context.runtime.wake_worker()
    return RedirectResponse(f"/events/{receipt.receipt}?done=replayed", 303)


async def retry_one(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    await run_now(context, request, receipt)
    return RedirectResponse(f"/events/{receipt.receipt}?done=retried", 303)


async def rehearse_one(context: Context, request: Request) -> Response:
    """Its handler runs in a transaction that is rolled back; what it would have done is shown."""
    receipt = await find(context, request)
    await context.store.operations.audit(principal(request).name, "rehearse", {"receipts": [receipt.receipt]})
    rehearsal = await context.runtime.rehearse(receipt)
    return await _render(context, request, receipt, rehearsal=rehearsal)


async def erase(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    if not await forget(context.store, [receipt.receipt], actor=principal(request).name):
        raise Problem(409, "not_erased", "There is no payload to erase.")
    return RedirectResponse(f"/events/{receipt.receipt}?done=erased", 303)


PAGE = Page(
    "Event",
    "/events/{receipt}",
    (
        Action("GET", "/events/{receipt}", show),
        Action("GET", "/events/{receipt}/raw", raw),
        Action("POST", "/events/{receipt}/replay", replay_one, scope="replay"),
        Action("POST", "/events/{receipt}/retry", retry_one, scope="replay"),
        Action("POST", "/events/{receipt}/rehearse", rehearse_one, scope="replay"),
        Action("POST", "/events/{receipt}/erase", erase, scope="admin"),
    ),
)
