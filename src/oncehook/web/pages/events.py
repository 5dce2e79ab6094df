"""The list of events, and bulk replays of the events that a filter selects."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.states import UNHANDLED, State
from oncehook.model.values import rate as parse_rate
from oncehook.web.consumers import named_consumers
from oncehook.web.listing import (
    EventFilterForm,
    EventPage,
    encrypted_note,
    find_by_id,
    list_events,
    read_cursor,
    write_cursor,
)
from oncehook.web.page import Action, Context, Page, Problem, form, principal
from oncehook.web.replays import count_replay, select_events


async def show(context: Context, request: Request) -> Response:
    filters = EventFilterForm.of(request.query_params)
    cursor = request.query_params.get("cursor")
    problem, page, by_id, note = None, EventPage([]), [], None
    try:
        page = await list_events(context.reads.receipts, filters.parse(), read_cursor(cursor))
        note = await encrypted_note(context, filters.parse())
        by_id = await find_by_id(context.reads.receipts, filters.search) if filters.search and not cursor else []
    except Problem as error:
        problem = error.message
    return context.render(
        request,
        "events.html",
        status=422 if problem else 200,
        filters=filters,
        page=page,
        by_id=by_id,
        note=note,
        problem=problem,
        states=[*State, UNHANDLED],
        sources=await _sources(context),
        consumers=await named_consumers(context),
        has_tenants=bool(context.runtime.tenants),
        is_first=not cursor,
        more=urlencode({**filters.non_empty(), "cursor": write_cursor(page.next) or ""}),
        query=urlencode(filters.non_empty()),
    )


async def _sources(context: Context) -> list[str]:
    snapshot = await context.overview.snapshot()
    return sorted({*context.runtime.sources, *snapshot["sources"]})


# -- bulk replays -----------------------------------------------------------------------------------------------------


async def confirm_replay(context: Context, request: Request) -> Response:
    """Show how many events a replay would select, and ask for confirmation."""
    filters = EventFilterForm.of(request.query_params)
    plan = await count_replay(context, await select_events(context, filters))
    note = await encrypted_note(context, filters.parse())
    query = urlencode(filters.non_empty())
    return context.render(request, "replay.html", filters=filters, plan=plan, query=query, note=note)


def _rate(text: str) -> float | None:
    """Events per second; None for no limit."""
    try:
        return parse_rate(f"{text.strip()}/s") if text.strip() else None
    except ValueError:
        raise Problem(422, "bad_rate", "The rate must be a number of events per second, such as 50.") from None


async def start_replay(context: Context, request: Request) -> Response:
    """Replay the confirmed events. If their number has changed, it asks for confirmation again."""
    filters = EventFilterForm.of(form(request))
    selection = await select_events(context, filters)
    rate = _rate(form(request).get("rate", ""))
    plan = await count_replay(context, selection)
    if str(plan.count) != form(request).get("count") or not plan.count:
        note, query = await encrypted_note(context, filters.parse()), urlencode(filters.non_empty())
        facts = {"filters": filters, "plan": plan, "query": query, "note": note, "changed": True}
        return context.render(request, "replay.html", status=409, **facts)
    run = await context.runs.start(selection, principal(request).name, plan.matched, rate)
    return RedirectResponse(f"/replays/{run.run}", 303)


async def show_run(context: Context, request: Request) -> Response:
    run = await context.runs.get(request.path_params["run"])
    if run is None:
        raise Problem(404, "not_found", "Replay not found.")
    return context.render(request, "run.html", run=run)


PAGE = Page(
    "Events",
    "/events",
    (
        Action("GET", "/events", show),
        Action("GET", "/replay", confirm_replay, scope="replay"),
        Action("POST", "/replay", start_replay, scope="replay"),
        Action("GET", "/replays/{run}", show_run),
    ),
)
