"""The list of events, and replays of what a filter picks."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.states import UNHANDLED, State
from oncehook.model.values import rate as parse_rate
from oncehook.web.listing import Asked, Listing, exactly, list_events, read_cursor, write_cursor
from oncehook.web.page import Action, Context, Page, Problem, form, principal
from oncehook.web.replays import count, selected


async def show(context: Context, request: Request) -> Response:
    asked = Asked.of(request.query_params)
    cursor = request.query_params.get("cursor")
    problem, found, exact = None, Listing([]), []
    try:
        wanted = asked.filter()
        found = await list_events(context.store.receipts, wanted, read_cursor(cursor))
        exact = await exactly(context.store.receipts, asked.search) if asked.search and not cursor else []
    except Problem as error:
        problem = error.message
    return context.render(
        request,
        "events.html",
        status=422 if problem else 200,
        asked=asked,
        found=found,
        exact=exact,
        problem=problem,
        states=[*State, UNHANDLED],
        sources=await _sources(context),
        is_first=not cursor,
        more=urlencode({**asked.given(), "cursor": write_cursor(found.next) or ""}),
        query=urlencode(asked.given()),
    )


async def _sources(context: Context) -> list[str]:
    standing = await context.overview.standing()
    return sorted({*context.runtime.sources, *standing["sources"]})


# -- replays of many --------------------------------------------------------------------------------------------------


async def ask(context: Context, request: Request) -> Response:
    """What a replay would do, before it does."""
    asked = Asked.of(request.query_params)
    would = await count(context, await selected(context, asked))
    return context.render(request, "replay.html", asked=asked, would=would, query=urlencode(asked.given()))


def _rate(text: str) -> float | None:
    """How many a second; nothing: as fast as they go."""
    try:
        return parse_rate(f"{text.strip()}/s") if text.strip() else None
    except ValueError:
        raise Problem(422, "bad_rate", "The rate is how many events a second, such as 50.") from None


async def start(context: Context, request: Request) -> Response:
    """Replay what was shown. More than that is asked again: what arrived since was not agreed to."""
    asked = Asked.of(form(request))
    selection = await selected(context, asked)
    rate = _rate(form(request).get("rate", ""))
    would = await count(context, selection)
    if str(would.count) != form(request).get("count") or not would.count:
        return context.render(
            request, "replay.html", status=409, asked=asked, would=would, query=urlencode(asked.given()), changed=True
        )
    run = await context.runs.start(selection, principal(request).name, would.matched, rate)
    return RedirectResponse(f"/replays/{run.run}", 303)


async def run(context: Context, request: Request) -> Response:
    found = await context.runs.get(request.path_params["run"])
    if found is None:
        raise Problem(404, "not_found", "There is no such replay.")
    return context.render(request, "run.html", run=found)


PAGE = Page(
    "Events",
    "/events",
    (
        Action("GET", "/events", show),
        Action("GET", "/replay", ask, scope="replay"),
        Action("POST", "/replay", start, scope="replay"),
        Action("GET", "/replays/{run}", run),
    ),
)
