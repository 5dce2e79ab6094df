"""API endpoints for effects."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook.effects.effect import effect_json
from oncehook.operations.replay import replay_effects
from oncehook.web.api.endpoint import Endpoint, json_response, read_body, read_query
from oncehook.web.api.schemas.effects import Effect, Effects, EffectsQuery, ReplayedEffects, SelectedEffects
from oncehook.web.effects import (
    EffectFilterForm,
    failed_effects,
    find_effect,
    list_effects,
    read_cursor,
    replay_effect,
    wake_relay,
)
from oncehook.web.overview import MAX_COUNT
from oncehook.web.page import Context, Problem, principal


async def get_page(context: Context, request: Request) -> Response:
    query = read_query(request, EffectsQuery)
    filters = EffectFilterForm.of(msgspec.structs.asdict(query))
    page = await list_effects(context.reads.effects, filters.parse(), read_cursor(query.cursor), query.limit)
    return json_response(
        {
            "effects": [effect_json(row) for row in page.rows],
            "next": None if page.next is None else str(page.next),
            "is_partial": page.is_partial,
            "counts": await context.reads.effects.bounded_counts(MAX_COUNT),
        }
    )


async def show(context: Context, request: Request) -> Response:
    return json_response(effect_json(await find_effect(context, request)))


async def replay_one(context: Context, request: Request) -> Response:
    await replay_effect(context, request)
    return json_response({"replayed": 1, "left": 0})


async def replay_many(context: Context, request: Request) -> Response:
    """Replay the failed effects of a source or target. `count` must be the number that a dry run returned."""
    body = read_body(request, SelectedEffects)
    selection = failed_effects(EffectFilterForm(source=body.source, target=body.target))
    count, erased = await context.store.effects.count_failed(selection)
    if body.dry_run:
        return json_response({"replayed": count, "left": erased})
    if body.count != count:
        raise Problem(
            409,
            "count_changed",
            f"The filter now matches {count:,} effects. Send the request again with count {count}.",
        )
    replayed = len(await replay_effects(context.store, selection, actor=principal(request).name))
    wake_relay(context)
    return json_response({"replayed": replayed, "left": erased})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/effects",
        get_page,
        summary="Lists effects, newest first.",
        query=EffectsQuery,
        response=Effects,
    ),
    Endpoint(
        "POST",
        "/api/effects/replay",
        replay_many,
        scope="replay",
        summary="Replays or counts the failed effects of a source or target.",
        body=SelectedEffects,
        response=ReplayedEffects,
    ),
    Endpoint("GET", "/api/effects/{effect}", show, summary="Returns one effect with its arguments.", response=Effect),
    Endpoint(
        "POST",
        "/api/effects/{effect}/replay",
        replay_one,
        scope="replay",
        summary="Replays one failed effect.",
        response=ReplayedEffects,
    ),
)
