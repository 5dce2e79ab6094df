"""The page of sources: URLs, settings, rejections and pauses."""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.rows import LiveHandler
from oncehook.providers.definition import built_in_names
from oncehook.web.managed import GRACES, changing_sources, grace_of, secret_of
from oncehook.web.page import Action, Context, Page, Problem, check_texts, form
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
    return await _render(context, request)


async def _render(
    context: Context, request: Request, *, problem: Problem | None = None, values: dict[str, str] | None = None
) -> Response:
    """The page. With `problem`, it explains why a change failed; `values` are the fields of the form."""
    snapshot, stats = await context.overview.snapshot(), context.runtime.reception.stats
    removed = sorted({*snapshot["sources"], *snapshot["paused"]} - set(context.runtime.sources))
    cases, secrets = await context.diagnoses.get()
    live = await context.store.roster.live_handlers()
    handlers: dict[str, list[LiveHandler]] = {name: [] for name in context.runtime.sources}  # after the last await
    for row in live:
        handlers.setdefault(row.source, []).append(row)
    rejected = {name: last_rejections(context, name, cases.get(name)) for name in context.runtime.sources}
    return context.render(
        request,
        "sources.html",
        status=200 if problem is None else problem.status,
        problem=problem,
        values=values or {},
        providers=sorted({*built_in_names(), *context.runtime.configuration.providers}),
        graces=GRACES,
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


# -- managed sources --------------------------------------------------------------------------------------------------


async def add(context: Context, request: Request) -> Response:
    fields = form(request)
    check_texts({name: value for name, value in fields.items() if name != "secret"})
    name, provider = fields.get("name", "").strip(), fields.get("provider", "").strip()
    settings: dict[str, Any] = {"provider": provider} if provider else {}
    has_tenants = fields.get("tenants") == "on"
    try:
        secrets = [] if has_tenants and not fields.get("secret", "").strip() else [secret_of(fields)]
        async with changing_sources(context, request) as changes:
            await changes.add(name, secrets, {**settings, "tenants": True} if has_tenants else settings)
    except Problem as problem:
        return await _render(context, request, problem=problem, values={"name": name, "provider": provider})
    return RedirectResponse(f"/sources?done=added#source-{quote(name)}", 303)


async def rotate(context: Context, request: Request) -> Response:
    fields, name = form(request), request.path_params["source"]
    try:
        async with changing_sources(context, request) as changes:
            await changes.rotate(name, secret_of(fields), grace=grace_of(fields))
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return RedirectResponse(f"/sources?done=rotated#source-{quote(name)}", 303)


async def finish(context: Context, request: Request) -> Response:
    name = request.path_params["source"]
    try:
        async with changing_sources(context, request) as changes:
            await changes.finish(name)
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return RedirectResponse(f"/sources?done=finished#source-{quote(name)}", 303)


async def remove(context: Context, request: Request) -> Response:
    try:
        async with changing_sources(context, request) as changes:
            await changes.remove(request.path_params["source"])
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return RedirectResponse("/sources?done=removed", 303)


PAGE = Page(
    "Sources",
    "/sources",
    (
        Action("GET", "/sources", show),
        Action("POST", "/sources/add", add, scope="admin"),
        Action("POST", "/sources/{source}/rotate", rotate, scope="admin"),
        Action("POST", "/sources/{source}/finish", finish, scope="admin"),
        Action("POST", "/sources/{source}/remove", remove, scope="admin"),
        Action("POST", "/sources/{source}/pause", pause, scope="admin"),
        Action("POST", "/sources/{source}/resume", resume, scope="admin"),
    ),
)
