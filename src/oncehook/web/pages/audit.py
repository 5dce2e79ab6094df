"""The audit: what people did, newest first."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.web.page import Action, Context, Page, Problem

LIMIT = 50


async def show(context: Context, request: Request) -> Response:
    rows, more = await look(context, request.query_params.get("before"), LIMIT)
    return context.render(request, "audit.html", rows=rows, more=more)


async def look(context: Context, before: str | None, limit: int) -> tuple[list[dict[str, object]], int | None]:
    """A page, and where the next one begins."""
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise Problem(400, "bad_cursor", "The cursor is not one of ours: start at the first page.")
    rows = await context.store.audited(before=int(before) if before else None, limit=limit + 1)
    return rows[:limit], rows[limit - 1]["id"] if len(rows) > limit else None


PAGE = Page("Audit", "/audit", (Action("GET", "/audit", show),))
