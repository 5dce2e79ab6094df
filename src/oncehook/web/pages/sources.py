"""The page of sources: URLs, settings, rejections and pauses."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.rows import LiveHandler
from oncehook.web.page import Action, Context, Page
from oncehook.web.sources import describe_source, last_rejections, set_paused

ADVICE = {
    "bad_signature": "The signature does not match any configured secret, or a proxy changed the body. Compare the "
    "secret with the provider's secret.",
    "stale_timestamp": "The signature's timestamp is too old or in the future. Check this machine's clock.",
    "malformed": "The delivery does not have the provider's format. Compare its body with the provider's docs.",
    "head_too_large": "The delivery had more than 64 kB or 200 lines of headers. Check which client sends it.",
    "too_large": "The body exceeds this source's `max_body`. Raise `max_body` if the provider sends such bodies.",
    "timeout": "The body did not arrive in time. Check the network between the provider and this service.",
    "unsupported_media_type": "The provider never sends this content type. Check which client sends it.",
    "method_not_allowed": "The request was not a POST. Check which client sends it; a browser sends GET.",
    "foreign_origin": "A web page sent the request from a browser, and this source does not verify signatures. "
    "Configure a secret if the provider signs.",
    "unknown_source": "No source has this name. Compare the URL in the provider's settings with the URLs on this page.",
}


async def show(context: Context, request: Request) -> Response:
    snapshot, stats = await context.overview.snapshot(), context.runtime.reception.stats
    removed = sorted({*snapshot["sources"], *snapshot["paused"]} - set(context.runtime.sources))
    cases, secrets = await context.diagnoses.get()
    handlers: dict[str, list[LiveHandler]] = {name: [] for name in context.runtime.sources}
    for row in await context.store.roster.live_handlers():
        handlers.setdefault(row.source, []).append(row)
    rejected = {name: last_rejections(context, name, cases.get(name)) for name in context.runtime.sources}
    return context.render(
        request,
        "sources.html",
        sources=[describe_source(context, name) for name in sorted(context.runtime.sources)],
        removed=removed,
        snapshot=snapshot,
        unknown=stats.last_rejections.get("unknown"),
        advice=ADVICE,
        base=context.receiver_url(request),
        rejected=rejected,
        secrets=secrets,
        handlers=handlers,
        done=request.query_params.get("done"),
    )


# -- pausing ----------------------------------------------------------------------------------------------------------


async def pause(context: Context, request: Request) -> Response:
    name = await set_paused(context, request, paused=True)
    return RedirectResponse(f"/sources?done=paused#source-{quote(name)}", 303)


async def resume(context: Context, request: Request) -> Response:
    name = await set_paused(context, request, paused=False)
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
