"""The page of consumers: their subscriptions, their work and their pauses. It is shown if there are several."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.runtime import Runtime
from oncehook.web.consumers import describe_consumers, set_consumer_paused
from oncehook.web.overview import MAX_COUNT
from oncehook.web.page import Action, Context, Page


async def show(context: Context, request: Request) -> Response:
    return context.render(
        request,
        "consumers.html",
        consumers=await describe_consumers(context),
        most=MAX_COUNT,
        done=request.query_params.get("done"),
    )


async def pause(context: Context, request: Request) -> Response:
    name = await set_consumer_paused(context, request, paused=True)
    return RedirectResponse(f"/consumers?done=paused#consumer-{quote(name)}", 303)


async def resume(context: Context, request: Request) -> Response:
    name = await set_consumer_paused(context, request, paused=False)
    return RedirectResponse(f"/consumers?done=resumed#consumer-{quote(name)}", 303)


def has_consumers(runtime: Runtime) -> bool:
    """Whether a consumer besides `main` subscribes to a source."""
    return bool(runtime.consumers.stored)


PAGE = Page(
    "Consumers",
    "/consumers",
    (
        Action("GET", "/consumers", show),
        Action("POST", "/consumers/{consumer}/pause", pause, scope="admin"),
        Action("POST", "/consumers/{consumer}/resume", resume, scope="admin"),
    ),
    is_shown=has_consumers,
)
