"""The audit: what people did, newest first."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.web.audit import look
from oncehook.web.page import Action, Context, Page

LIMIT = 50


async def show(context: Context, request: Request) -> Response:
    rows, more = await look(context, request.query_params.get("before"), LIMIT)
    return context.render(request, "audit.html", rows=rows, more=more)


PAGE = Page("Audit", "/audit", (Action("GET", "/audit", show),))
