"""The page of dead letters, grouped by error."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.operations.dead_letters import MAX_ERRORS, group_by_error
from oncehook.web.consumers import named_consumers
from oncehook.web.page import Action, Context, Page

MAX_GROUPS = 200


async def show(context: Context, request: Request) -> Response:
    groups = group_by_error(await context.reads.stats.dead_letters(MAX_ERRORS))
    total = sum(group["receipts"] for group in groups)
    return context.render(
        request,
        "dead.html",
        groups=groups[:MAX_GROUPS],
        total=total,
        left_out=len(groups[MAX_GROUPS:]),
        consumers=await named_consumers(context),
    )


PAGE = Page("Dead letters", "/dead", (Action("GET", "/dead", show),))
