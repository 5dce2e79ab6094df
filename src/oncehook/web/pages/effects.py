"""Effects: what is done outside the database after the commit, how it stands, and another try for what has failed."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.effects.effect import effect_json
from oncehook.operations.replay import replay_effects
from oncehook.web.effects import Asked, Listing, find, list_effects, read_cursor, selected, try_again, wake
from oncehook.web.overview import MOST
from oncehook.web.page import Action, Context, Page, Problem, form, principal
from oncehook.web.show import pretty

MEANING = {
    "waiting": "recorded, for a relay to take",
    "performing": "a relay has it",
    "retrying": "failed, and tried again",
    "done": "taken by its target",
    "failed": "given up",
}


async def show(context: Context, request: Request) -> Response:
    asked, cursor = Asked.of(request.query_params), request.query_params.get("cursor")
    problem, found = None, Listing([])
    try:
        found = await list_effects(context.store.effects, asked.filter(), read_cursor(cursor))
    except Problem as error:
        problem = error.message
    standing = await context.overview.standing()
    return context.render(
        request,
        "effects.html",
        status=422 if problem else 200,
        asked=asked,
        found=found,
        problem=problem,
        counts=await context.store.effects.bounded_counts(MOST),
        most=MOST,
        meaning=MEANING,
        is_first=not cursor,
        sources=sorted({*context.runtime.sources, *standing["sources"]}),
        query=urlencode(asked.given()),
        more=urlencode({**asked.given(), "cursor": found.next or ""}),
        failed=urlencode({name: value for name in ("source", "target") if (value := getattr(asked, name))}),
        done=request.query_params.get("done"),
    )


async def one(context: Context, request: Request) -> Response:
    row = await find(context, request)
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


# -- trying again -----------------------------------------------------------------------------------------------------


async def replay_one(context: Context, request: Request) -> Response:
    return RedirectResponse(f"/effects/{await try_again(context, request)}?done=replayed", 303)


async def ask(context: Context, request: Request) -> Response:
    """What a replay would do, before it does."""
    return await _confirm(context, request, Asked.of(request.query_params))


async def _confirm(context: Context, request: Request, asked: Asked, *, changed: bool = False) -> Response:
    count, erased = await context.store.effects.count_failed(selected(asked))
    given = {name: value for name, value in asked.given().items() if name in ("source", "target")}
    return context.render(
        request,
        "effects_replay.html",
        status=409 if changed else 200,
        given=given,
        count=count,
        erased=erased,
        changed=changed,
        query=urlencode({"status": "failed", **given}),
    )


async def start(context: Context, request: Request) -> Response:
    """Replay as many as were agreed to. Another number now is asked again."""
    asked = Asked.of(form(request))
    wanted = selected(asked)
    count, _ = await context.store.effects.count_failed(wanted)
    if not count or str(count) != form(request).get("count"):
        return await _confirm(context, request, asked, changed=True)
    moved = len(await replay_effects(context.store, wanted, actor=principal(request).name))
    wake(context)
    return RedirectResponse(f"/effects?done={moved}", 303)


PAGE = Page(
    "Effects",
    "/effects",
    (
        Action("GET", "/effects", show),
        Action("GET", "/effects/replay", ask, scope="replay"),
        Action("POST", "/effects/replay", start, scope="replay"),
        Action("GET", "/effects/{effect}", one),
        Action("POST", "/effects/{effect}/replay", replay_one, scope="replay"),
    ),
)
