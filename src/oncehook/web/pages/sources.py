"""Sources: where each is, who sends there, and how it has been doing."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.rows import LiveHandler
from oncehook.web.page import Action, Context, Page
from oncehook.web.sources import about, change, last_refusals

ADVICE = {
    "bad_signature": "No secret here signed it. Compare the secret with the sender's, or add the sender's new one "
    "beside the old. Something between that changes the body does the same.",
    "stale_timestamp": "It was signed too long ago or ahead of now. Compare this machine's clock with the time.",
    "malformed": "It was signed well and cannot be read. Compare the provider's format with what the sender sends.",
    "head_too_large": "Its headers are larger than 64 kB, or more than 200.",
    "too_large": "Its body is larger than max_body allows for this source.",
    "timeout": "Its body did not arrive in time.",
    "unsupported_media_type": "Its content type is none that this provider sends.",
    "method_not_allowed": "It was not a POST: somebody looked, or the address is used for something else.",
    "foreign_origin": "A web page in somebody's browser sent it, and this source verifies nothing.",
    "unknown_source": "The address names no source: compare the path with the list here.",
}


async def show(context: Context, request: Request) -> Response:
    standing, stats = await context.overview.standing(), context.runtime.reception.stats
    gone = sorted({*standing["sources"], *standing["paused"]} - set(context.runtime.sources))
    cases, secrets = await context.doctor.look()
    handlers: dict[str, list[LiveHandler]] = {name: [] for name in context.runtime.sources}
    for row in await context.store.roster.live_handlers():
        handlers.setdefault(row.source, []).append(row)
    refused = {name: last_refusals(context, name, cases.get(name)) for name in context.runtime.sources}
    return context.render(
        request,
        "sources.html",
        sources=[about(context, name) for name in sorted(context.runtime.sources)],
        gone=gone,
        standing=standing,
        unknown=stats.last_rejections.get("unknown"),
        advice=ADVICE,
        base=context.door_url(request),
        since=stats.started,
        refused=refused,
        secrets=secrets,
        handlers=handlers,
        done=request.query_params.get("done"),
    )


# -- pausing ----------------------------------------------------------------------------------------------------------


async def pause(context: Context, request: Request) -> Response:
    name = await change(context, request, paused=True)
    return RedirectResponse(f"/sources?done=paused#source-{quote(name)}", 303)


async def resume(context: Context, request: Request) -> Response:
    name = await change(context, request, paused=False)
    return RedirectResponse(f"/sources?done=resumed#source-{quote(name)}", 303)


PAGE = Page(
    "Sources",
    "/sources",
    (
        Action("GET", "/sources", show),
        Action("POST", "/sources/{source}/pause", pause, scope="admin"),
        Action("POST", "/sources/{source}/resume", resume, scope="admin"),
    ),
)
