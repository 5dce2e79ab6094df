"""The email pages: counts, the status of a message, and suppressions. Shown if a source has `email = true`."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.concurrency.clock import SYSTEM
from oncehook.email import DIMENSIONS
from oncehook.email.event import EmailType
from oncehook.model.errors import StoreUnavailable
from oncehook.runtime import Runtime
from oncehook.web.charts import Chart, chart
from oncehook.web.email import change_suppression, list_suppressions
from oncehook.web.page import Action, Context, Page, Problem, check_texts, form

LIMIT = 50
MAX_ROWS = 200
DAY = 86400
RANGES = {"7": "week", "30": "30 days", "90": "90 days"}
GROUPINGS = tuple(name for name in DIMENSIONS if name != "type")
CHARTS = {
    "delivered": (("delivered",), "Accepted by the recipient's mail server."),
    "bounced": (("bounced", "rejected", "failed"), "Bounced, rejected and failed."),
    "complained": (("complained", "unsubscribed"), "Spam complaints and unsubscribes."),
    "opened": (("opened", "clicked"), "Opens and clicks that the provider tracked."),
}
ORDER = {name: index for index, name in enumerate(EmailType)}


def is_used(runtime: Runtime) -> bool:
    return any(source.settings.email for source in runtime.sources.values())


# -- counts -----------------------------------------------------------------------------------------------------------


async def show(context: Context, request: Request) -> Response:
    days = request.query_params.get("days", "")
    days = days if days in RANGES else "30"
    by = request.query_params.get("by", "")
    by = by if by in GROUPINGS else "day"
    charts: dict[str, Chart] = {}
    types: list[str] = []
    rows: list[dict[str, Any]] = []
    is_slow = False
    try:
        charts, types, rows = await _count(context, int(days), by)
    except StoreUnavailable:
        is_slow = True
    return context.render(
        request,
        "email.html",
        days=days,
        ranges=RANGES,
        by=by,
        groupings=GROUPINGS,
        charts=charts,
        types=types,
        rows=rows[:MAX_ROWS],
        left_out=len(rows[MAX_ROWS:]),
        meaning={name: text for name, (_, text) in CHARTS.items()},
        is_slow=is_slow,
    )


async def _count(context: Context, days: int, by: str) -> tuple[dict[str, Chart], list[str], list[dict[str, Any]]]:
    today = datetime.combine(SYSTEM.datetime().date(), datetime.min.time(), UTC)
    since = today - timedelta(days=days - 1)
    email = context.runtime.email
    daily = await email.counts(("day", "type"), since=since)
    rows = daily if by == "day" else await email.counts((by, "type"), since=since)
    return _charts(daily, since, days), *pivoted(rows, by)


def _charts(daily: list[dict[str, Any]], since: datetime, days: int) -> dict[str, Chart]:
    starts = [since + timedelta(days=n) for n in range(days)]
    charts = {}
    for name, (types, _) in CHARTS.items():
        counted: Counter[str] = Counter()
        for row in daily:
            counted[row["day"]] += row["events"] * (row["type"] in types)
        numbers = [counted[f"{start:%Y-%m-%d}"] for start in starts]
        charts[name] = chart([int(start.timestamp()) for start in starts], numbers, DAY)
    return charts


def pivoted(counts: list[dict[str, Any]], by: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the types, and a row per day, tag, domain or source. The newest day or the largest row comes first."""
    types = sorted({row["type"] for row in counts}, key=lambda name: ORDER.get(name, len(ORDER)))
    table: dict[str, Counter[str]] = {}
    for row in counts:
        table.setdefault(row[by] or "", Counter())[row["type"]] += row["events"]
    rows = [{"name": name, "total": numbers.total(), "numbers": numbers} for name, numbers in table.items()]
    if by == "day":
        return types, sorted(rows, key=lambda row: str(row["name"]), reverse=True)
    return types, sorted(rows, key=lambda row: (-row["total"], str(row["name"])))


# -- a message --------------------------------------------------------------------------------------------------------


async def message(context: Context, request: Request) -> Response:
    message_id = request.query_params.get("message", "").strip()
    check_texts({"message": message_id})
    email = context.runtime.email
    statuses = await email.status(message_id) if message_id else []
    events = await email.events(message_id) if statuses else []
    return context.render(request, "email_message.html", message=message_id, statuses=statuses, events=events)


# -- suppressions -----------------------------------------------------------------------------------------------------


async def suppressions(context: Context, request: Request) -> Response:
    query = request.query_params
    return await _suppressions(context, request, query.get("search", "").strip(), done=query.get("done"))


async def _suppressions(
    context: Context,
    request: Request,
    search: str,
    *,
    done: str | None = None,
    problem: str | None = None,
    values: dict[str, str] | None = None,
) -> Response:
    after = request.query_params.get("after", "")
    rows, more = await list_suppressions(context, search, after, LIMIT)
    exact = await context.runtime.email.suppression(search) if "@" in search else None
    if exact is not None and exact["address"] not in [row["address"] for row in rows]:
        rows = [exact, *rows]  # an erased address is stored as a hash and found only by itself
    return context.render(
        request,
        "email_suppressions.html",
        status=422 if problem else 200,
        rows=rows,
        search=search,
        more=more,
        is_first=not after,
        done=done,
        problem=problem,
        values=values or {},
    )


async def suppress(context: Context, request: Request) -> Response:
    return await _change(context, request, remove=False)


async def allow(context: Context, request: Request) -> Response:
    return await _change(context, request, remove=True)


async def _change(context: Context, request: Request, *, remove: bool) -> Response:
    fields = form(request)
    address, note = fields.get("address", ""), fields.get("note", "")
    try:
        row = await change_suppression(context, request, address, note, remove=remove)
    except Problem as error:
        values = {"address": address[:500], "note": note[:500]}
        return await _suppressions(context, request, "", problem=error.message, values=values)
    done, search = ("allowed", "") if row["since"] is None else ("suppressed", row["address"])
    return RedirectResponse(f"/email/suppressions?done={done}&search={quote(search)}", 303)


PAGE = Page(
    "Email",
    "/email",
    (
        Action("GET", "/email", show),
        Action("GET", "/email/message", message),
        Action("GET", "/email/suppressions", suppressions),
        Action("POST", "/email/suppress", suppress, scope="admin"),
        Action("POST", "/email/allow", allow, scope="admin"),
    ),
    is_used,
)
