"""The audit page: actions of users and tokens, newest first."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.web.audit import list_audit
from oncehook.web.page import Action, Context, Page

LIMIT = 50


async def show(context: Context, request: Request) -> Response:
    rows, more = await list_audit(context, request.query_params.get("before"), LIMIT)
    return context.render(request, "audit.html", rows=rows, more=more)


PAGE = Page("Audit", "/audit", (Action("GET", "/audit", show),))
