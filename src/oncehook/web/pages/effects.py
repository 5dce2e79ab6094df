"""The pages of effects: the list, one effect, and replays of failed effects."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.effects.effect import effect_json
from oncehook.operations.replay import replay_effects
from oncehook.web.effects import (
    EffectFilterForm,
    EffectPage,
    failed_effects,
    find_effect,
    list_effects,
    read_cursor,
    replay_effect,
    wake_relay,
)
from oncehook.web.overview import MAX_COUNT
from oncehook.web.page import Action, Context, Page, Problem, form, principal
from oncehook.web.show import pretty

MEANING = {
    "waiting": "waiting for a relay",
    "performing": "running in a relay",
    "retrying": "failed, will be retried",
    "done": "completed",
    "failed": "no attempts left",
}


async def show(context: Context, request: Request) -> Response:
    filters, cursor = EffectFilterForm.of(request.query_params), request.query_params.get("cursor")
    problem, page = None, EffectPage([])
    try:
        page = await list_effects(context.reads.effects, filters.parse(), read_cursor(cursor))
    except Problem as error:
        problem = error.message
    snapshot = await context.overview.snapshot()
    return context.render(
        request,
        "effects.html",
        status=422 if problem else 200,
        filters=filters,
        page=page,
        problem=problem,
        counts=await context.reads.effects.bounded_counts(MAX_COUNT),
        most=MAX_COUNT,
        meaning=MEANING,
        is_first=not cursor,
        sources=sorted({*context.runtime.sources, *snapshot["sources"]}),
        query=urlencode(filters.non_empty()),
        more=urlencode({**filters.non_empty(), "cursor": page.next or ""}),
        failed=urlencode({name: value for name in ("source", "target") if (value := getattr(filters, name))}),
        done=request.query_params.get("done"),
    )


async def show_effect(context: Context, request: Request) -> Response:
    row = await find_effect(context, request)
    args, is_cut = pretty((row.args or "").encode("utf-8", "replace"))
    receipt = await context.store.receipts.get(row.receipt)
    return context.render(
        request,
        "effect.html",
        effect=effect_json(row),
        args=args,
        is_cut=is_cut,
        receipt=receipt,
        done=request.query_params.get("done"),
    )


# -- replays ----------------------------------------------------------------------------------------------------------


async def replay_one(context: Context, request: Request) -> Response:
    return RedirectResponse(f"/effects/{await replay_effect(context, request)}?done=replayed", 303)


async def confirm_replay(context: Context, request: Request) -> Response:
    """Show how many effects a replay would select, and ask for confirmation."""
    return await _confirmation(context, request, EffectFilterForm.of(request.query_params))


async def _confirmation(
    context: Context, request: Request, filters: EffectFilterForm, *, changed: bool = False
) -> Response:
    count, erased = await context.store.effects.count_failed(failed_effects(filters))
    fields = {name: value for name, value in filters.non_empty().items() if name in ("source", "target")}
    return context.render(
        request,
        "effects_replay.html",
        status=409 if changed else 200,
        fields=fields,
        count=count,
        erased=erased,
        changed=changed,
        query=urlencode({"status": "failed", **fields}),
    )


async def start_replay(context: Context, request: Request) -> Response:
    """Replay the confirmed effects. If their number has changed, it asks for confirmation again."""
    filters = EffectFilterForm.of(form(request))
    selection = failed_effects(filters)
    count, _ = await context.store.effects.count_failed(selection)
    if not count or str(count) != form(request).get("count"):
        return await _confirmation(context, request, filters, changed=True)
    replayed = len(await replay_effects(context.store, selection, actor=principal(request).name))
    wake_relay(context)
    return RedirectResponse(f"/effects?done={replayed}", 303)


PAGE = Page(
    "Effects",
    "/effects",
    (
        Action("GET", "/effects", show),
        Action("GET", "/effects/replay", confirm_replay, scope="replay"),
        Action("POST", "/effects/replay", start_replay, scope="replay"),
        Action("GET", "/effects/{effect}", show_effect),
        Action("POST", "/effects/{effect}/replay", replay_one, scope="replay"),
    ),
)
