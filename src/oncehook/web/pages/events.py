"""The list of events, and replays of what a filter picks."""

import asyncio
from dataclasses import replace
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.receipt import UNHANDLED, Filter, State
from oncehook.model.values import rate as parse_rate
from oncehook.operations.dead_letters import shape
from oncehook.operations.replay import Replayed, survey
from oncehook.store.rows import Selection
from oncehook.web.listing import Asked, Listing, exactly, list_events, place, read_cursor, write_cursor
from oncehook.web.page import Action, Context, Page, Problem, form, principal

PAGE_OF_DEAD = 500
MOST_NAMED = 5_000
COUNTING = 15.0
"""Seconds that counting what a replay would do may take."""


async def show(context: Context, request: Request) -> Response:
    asked = Asked.of(request.query_params)
    cursor = request.query_params.get("cursor")
    problem, found, exact = None, Listing([]), []
    try:
        wanted = asked.filter()
        found = await list_events(context.store, wanted, read_cursor(cursor))
        exact = await exactly(context.store, asked.search) if asked.search and not cursor else []
    except Problem as error:
        problem = error.message
    return context.render(
        request, "events.html", status=422 if problem else 200, asked=asked, found=found, exact=exact,
        problem=problem, states=[*State, UNHANDLED], sources=await _sources(context), is_first=not cursor,
        more=urlencode({**asked.given(), "cursor": write_cursor(found.next) or ""}), query=urlencode(asked.given()),
    )  # fmt: skip


async def _sources(context: Context) -> list[str]:
    standing = await context.overview.standing()
    return sorted({*context.inbox.sources, *standing["sources"]})


# -- replays of many --------------------------------------------------------------------------------------------------


async def count(context: Context, selection: Selection) -> Replayed:
    try:
        async with asyncio.timeout(COUNTING):
            return await survey(context.store, selection)
    except TimeoutError:
        told = "This picks more than can be counted now: narrow the filter, by time for instance."
        raise Problem(422, "too_many", told) from None


async def selected(context: Context, asked: Asked) -> Selection:
    wanted = asked.filter()
    if wanted == Filter():
        raise Problem(422, "bad_filter", "Pick what to replay: everything there is would be too easily meant.")
    return Selection(wanted) if not asked.error else Selection(wanted, await _died_of(context, wanted, asked.error))


async def _died_of(context: Context, wanted: Filter, error: str) -> tuple[int, ...]:
    """The dead letters whose error differs from this one only in what it is about."""
    found: list[int] = []
    like, before = shape(error), None
    while page := await context.store.find(
        replace(wanted, status=State.FAILED.value), limit=PAGE_OF_DEAD, before=before
    ):
        found += [receipt.receipt for receipt in page if shape((receipt.last_error or "")[: len(error)]) == like]
        before = place(page[-1])
        if len(found) > MOST_NAMED:
            told = f"More than {MOST_NAMED:,} died of this: replay all of the source, or a shorter time."
            raise Problem(422, "too_many", told)
    return tuple(found)


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
