"""API endpoints for events: list, show, replay, rehearse and erase."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook.effects.effect import effect_json
from oncehook.handlers.order import entities_of
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import StoredPayload
from oncehook.operations.forget import forget
from oncehook.operations.payloads import read_payload
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.web.api.endpoint import Endpoint, json_response, read_body, read_query
from oncehook.web.api.schemas.events import Erasure, EventDetail, Events, EventsQuery, RetryNow
from oncehook.web.api.schemas.replays import Rehearsed, Replay, ReplaySelection, RunState
from oncehook.web.event import CHANGED, MAX_EFFECTS, download_payload, find_event, find_event_to_show, run_retry_now
from oncehook.web.listing import EventFilterForm, encrypted_note, list_events, read_cursor, write_cursor
from oncehook.web.page import Context, Problem, principal
from oncehook.web.replays import count_replay, select_events
from oncehook.web.show import shorten


async def get_page(context: Context, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    filters = EventFilterForm.of(msgspec.structs.asdict(query))
    page = await list_events(context.reads.receipts, filters.parse(), read_cursor(query.cursor), query.limit)
    events = [receipt.as_json() for receipt in page.receipts]
    note = await encrypted_note(context, filters.parse())
    return json_response(
        {"events": events, "next": write_cursor(page.next), "looked_to": page.searched_to, "note": note}
    )


async def show(context: Context, request: Request) -> Response:
    receipt, store = await find_event_to_show(context, request)
    number = receipt.receipt
    payload, unreadable = await read_payload(store, number)
    effects = await store.effects.find(EffectFilter(receipt=number), limit=MAX_EFFECTS)
    return json_response(
        {
            **receipt.as_json(),
            "consumers": await store.receipts.consumers_of(receipt),
            "payload": None if payload is None else _json_body(payload),
            "headers": None if payload is None else payload.headers,
            "unreadable": unreadable,
            "deliveries": await store.receipts.duplicates(number),
            "attempts_history": await store.receipts.attempts(number),
            "replays_history": await store.operations.replays(number) if receipt.replays else [],
            "effects": [effect_json(row) for row in effects],
            "noops": await store.effects.noops(number),
            "entities": await entities_of(store, receipt),
        }
    )


def _json_body(payload: StoredPayload) -> Any:
    """The body unchanged, so that numbers keep their precision; None if it is not JSON."""
    try:
        payload.body.decode()
        return msgspec.json.decode(payload.body, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def replay_one(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    result = await replay(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not result.count:
        reason = next(iter(result.left), CHANGED)
        raise Problem(409, "not_replayable", f"The event was not replayed: {reason}.")
    context.runtime.wake_worker()
    return json_response({"matched": result.matched, "replayed": result.count, "left": dict(result.left), "run": None})


async def retry_one(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    await run_retry_now(context, request, receipt)
    return json_response({"receipt": receipt.receipt, "retried": True})


async def rehearse_one(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    await context.store.operations.audit(principal(request).name, "rehearse", {"receipts": [receipt.receipt]})
    rehearsal = (await context.runtime.rehearse(receipt)).as_json()
    for statement in rehearsal["statements"]:
        statement["args"] = [shorten(value) for value in statement["args"]]
    return json_response(rehearsal)


async def erase(context: Context, request: Request) -> Response:
    receipt = await find_event(context, request)
    erased = await forget(context.store, [receipt.receipt], actor=principal(request).name)
    if not erased:
        raise Problem(409, "not_erased", "The payload was already pruned or erased.")
    return json_response({"erased": erased})


# -- bulk replays -----------------------------------------------------------------------------------------------------


async def replay_many(context: Context, request: Request) -> Response:
    """Replay the events of a filter. For more than one, `count` must be the number that a dry run returned."""
    body = read_body(request, ReplaySelection)
    selection = await select_events(context, EventFilterForm.of(msgspec.structs.asdict(body)))
    plan = await count_replay(context, selection)
    result = {"matched": plan.matched, "replayed": plan.count, "left": dict(plan.left), "run": None}
    if body.dry_run:
        return json_response(result)
    again = f"Send the request again with count {plan.count}."
    if body.count is None and plan.count > 1:
        raise Problem(409, "count_missing", f"The filter matches {plan.count:,} events. {again}")
    if body.count is not None and body.count != plan.count:
        raise Problem(409, "count_changed", f"The filter now matches {plan.count:,} events. {again}")
    run = await context.runs.start(selection, principal(request).name, plan.matched, body.rate)
    return json_response({**result, "replayed": 0, "run": run.run}, 202)


async def show_run(context: Context, request: Request) -> Response:
    run = await context.runs.get(request.path_params["run"])
    if run is None:
        raise Problem(404, "not_found", "Replay not found.")
    return json_response(run.as_json())


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/events",
        get_page,
        summary="Lists events, newest first.",
        query=EventsQuery,
        response=Events,
    ),
    Endpoint(
        "GET",
        "/api/events/{receipt}",
        show,
        summary="Returns one event with its payload and history.",
        response=EventDetail,
    ),
    Endpoint("GET", "/api/events/{receipt}/raw", download_payload, summary="Returns the exact bytes of the payload."),
    Endpoint(
        "POST",
        "/api/events/{receipt}/replay",
        replay_one,
        scope="replay",
        summary="Replays one event.",
        response=Replay,
    ),
    Endpoint(
        "POST",
        "/api/events/{receipt}/retry",
        retry_one,
        scope="replay",
        summary="Runs the next attempt of a retrying event now.",
        response=RetryNow,
    ),
    Endpoint(
        "POST",
        "/api/events/{receipt}/rehearse",
        rehearse_one,
        scope="replay",
        summary="Runs the handler in a transaction that is rolled back.",
        response=Rehearsed,
    ),
    Endpoint(
        "DELETE",
        "/api/events/{receipt}/payload",
        erase,
        scope="admin",
        summary="Erases the payload permanently.",
        response=Erasure,
    ),
    Endpoint(
        "POST",
        "/api/replays",
        replay_many,
        scope="replay",
        summary="Replays or counts the events that a filter selects.",
        body=ReplaySelection,
        response=Replay,
        status=202,
    ),
    Endpoint("GET", "/api/replays/{run}", show_run, summary="Returns the progress of a replay.", response=RunState),
)
