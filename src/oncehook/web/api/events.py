"""Events in JSON: look them up, replay, rehearse, erase."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook.effects.effect import effect_json
from oncehook.handlers.order import entities_of
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import StoredPayload
from oncehook.operations.prune import forget
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.web.api.endpoint import Endpoint, answer, read_body, read_query
from oncehook.web.api.schemas.events import Erased, Events, EventsQuery, Retried, WholeEvent
from oncehook.web.api.schemas.replays import Rehearsed, Replay, RunState, Selected
from oncehook.web.event import EFFECTS, find, raw, run_now
from oncehook.web.listing import Asked, list_events, read_cursor, write_cursor
from oncehook.web.page import Context, Problem, principal
from oncehook.web.replays import count, selected
from oncehook.web.show import shortened


async def list_them(context: Context, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    asked = Asked.of(msgspec.structs.asdict(query))
    found = await list_events(context.store.receipts, asked.filter(), read_cursor(query.cursor), query.limit)
    events = [receipt.as_json() for receipt in found.receipts]
    return answer({"events": events, "next": write_cursor(found.next), "looked_to": found.looked_to})


async def show(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    store, number = context.store, receipt.receipt
    payload = await store.receipts.payload(number)
    effects = await store.effects.find(EffectFilter(receipt=number), limit=EFFECTS)
    return answer(
        {
            **receipt.as_json(),
            "payload": None if payload is None else _view(payload),
            "headers": None if payload is None else payload.headers,
            "deliveries": await store.receipts.duplicates(number),
            "attempts_history": await store.receipts.attempts(number),
            "replays_history": await store.operations.replays(number) if receipt.replays else [],
            "effects": [effect_json(row) for row in effects],
            "noops": await store.effects.noops(number),
            "entities": await entities_of(store, receipt),
        }
    )


def _view(payload: StoredPayload) -> Any:
    """The body as it is, where it is JSON: no number in it is rounded."""
    try:
        payload.body.decode()
        return msgspec.json.decode(payload.body, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def replay_one(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    done = await replay(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not done.count:
        raise Problem(409, "not_replayable", f"It was not replayed: {next(iter(done.left), 'changed meanwhile')}.")
    context.runtime.wake_worker()
    return answer({"matched": done.matched, "replayed": done.count, "left": dict(done.left), "run": None})


async def retry_one(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    await run_now(context, request, receipt)
    return answer({"receipt": receipt.receipt, "retried": True})


async def rehearse_one(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    await context.store.operations.audit(principal(request).name, "rehearse", {"receipts": [receipt.receipt]})
    told = (await context.runtime.rehearse(receipt)).as_json()
    for statement in told["statements"]:
        statement["args"] = [shortened(value) for value in statement["args"]]
    return answer(told)


async def erase(context: Context, request: Request) -> Response:
    receipt = await find(context, request)
    erased = await forget(context.store, [receipt.receipt], actor=principal(request).name)
    if not erased:
        raise Problem(409, "not_erased", "There is no payload to erase.")
    return answer({"erased": erased})


# -- replays of many --------------------------------------------------------------------------------------------------


async def replay_many(context: Context, request: Request) -> Response:
    """Count first; then the same with that count. What has changed since was not agreed to."""
    body = read_body(request, Selected)
    selection = await selected(context, Asked.of(msgspec.structs.asdict(body)))
    would = await count(context, selection)
    told = {"matched": would.matched, "replayed": would.count, "left": dict(would.left), "run": None}
    if body.dry_run:
        return answer(told)
    if body.count is None and would.count > 1:
        told_count = f"The filter picks {would.count:,} events: to replay them, ask again with count {would.count}."
        raise Problem(409, "count_missing", told_count)
    if body.count is not None and body.count != would.count:
        raise Problem(409, "count_changed", f"The filter now picks {would.count:,}: ask again with that count.")
    run = await context.runs.start(selection, principal(request).name, would.matched, body.rate)
    return answer({**told, "replayed": 0, "run": run.run}, 202)


async def show_run(context: Context, request: Request) -> Response:
    run = await context.runs.get(request.path_params["run"])
    if run is None:
        raise Problem(404, "not_found", "There is no such replay.")
    return answer(run.as_json())


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/events",
        list_them,
        summary="Events, newest first.",
        query=EventsQuery,
        answer=Events,
    ),
    Endpoint("GET", "/api/events/{receipt}", show, summary="One event, whole.", answer=WholeEvent),
    Endpoint("GET", "/api/events/{receipt}/raw", raw, summary="The exact bytes of its body."),
    Endpoint(
        "POST",
        "/api/events/{receipt}/replay",
        replay_one,
        scope="replay",
        summary="Have one event handled again.",
        answer=Replay,
    ),
    Endpoint(
        "POST",
        "/api/events/{receipt}/retry",
        retry_one,
        scope="replay",
        summary="Run its waiting retry now.",
        answer=Retried,
    ),
    Endpoint(
        "POST",
        "/api/events/{receipt}/rehearse",
        rehearse_one,
        scope="replay",
        summary="Run its handler in a transaction that is rolled back.",
        answer=Rehearsed,
    ),
    Endpoint(
        "DELETE",
        "/api/events/{receipt}/payload",
        erase,
        scope="admin",
        summary="Erase its payload for good.",
        answer=Erased,
    ),
    Endpoint(
        "POST",
        "/api/replays",
        replay_many,
        scope="replay",
        summary="Replay what a filter picks, or count it.",
        body=Selected,
        answer=Replay,
        status=202,
    ),
    Endpoint("GET", "/api/replays/{run}", show_run, summary="How far a replay is.", answer=RunState),
)
