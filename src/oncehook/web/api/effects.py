"""Effects in JSON: look them up, and have failed ones performed again."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook.effects.effect import effect_json
from oncehook.operations.replay import replay_effects
from oncehook.web.api.endpoint import Endpoint, answer, read_body, read_query
from oncehook.web.api.schemas.effects import Effect, Effects, EffectsQuery, ReplayedEffects, SelectedEffects
from oncehook.web.effects import Asked, find, list_effects, read_cursor, selected, try_again, wake
from oncehook.web.overview import MOST
from oncehook.web.page import Context, Problem, principal


async def list_them(context: Context, request: Request) -> Response:
    query = read_query(request, EffectsQuery)
    asked = Asked.of(msgspec.structs.asdict(query))
    found = await list_effects(context.store.effects, asked.filter(), read_cursor(query.cursor), query.limit)
    return answer(
        {
            "effects": [effect_json(row) for row in found.rows],
            "next": None if found.next is None else str(found.next),
            "is_partial": found.is_partial,
            "counts": await context.store.effects.bounded_counts(MOST),
        }
    )


async def show(context: Context, request: Request) -> Response:
    return answer(effect_json(await find(context, request)))


async def replay_one(context: Context, request: Request) -> Response:
    await try_again(context, request)
    return answer({"replayed": 1, "left": 0})


async def replay_many(context: Context, request: Request) -> Response:
    """Count first; then the same with that count. What has changed since was not agreed to."""
    body = read_body(request, SelectedEffects)
    wanted = selected(Asked(source=body.source, target=body.target))
    count, erased = await context.store.effects.count_failed(wanted)
    if body.dry_run:
        return answer({"replayed": count, "left": erased})
    if body.count != count:
        raise Problem(409, "count_changed", f"The filter now picks {count:,}: ask again with that count.")
    moved = len(await replay_effects(context.store, wanted, actor=principal(request).name))
    wake(context)
    return answer({"replayed": moved, "left": erased})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/effects",
        list_them,
        summary="Effects, newest first.",
        query=EffectsQuery,
        answer=Effects,
    ),
    Endpoint(
        "POST",
        "/api/effects/replay",
        replay_many,
        scope="replay",
        summary="Have the failed ones of a source or target performed again, or count them.",
        body=SelectedEffects,
        answer=ReplayedEffects,
    ),
    Endpoint("GET", "/api/effects/{effect}", show, summary="One effect, with its arguments.", answer=Effect),
    Endpoint(
        "POST",
        "/api/effects/{effect}/replay",
        replay_one,
        scope="replay",
        summary="Have one failed effect performed again.",
        answer=ReplayedEffects,
    ),
)
