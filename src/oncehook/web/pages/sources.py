"""Sources: where each is, who sends there, and how it has been doing."""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.receipt import rfc3339
from oncehook.model.values import as_duration
from oncehook.providers.source import Source
from oncehook.web.page import Action, Context, Page, Problem, principal

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
    standing, meter = await context.overview.standing(), context.inbox.meter
    gone = sorted({*standing["sources"], *standing["paused"]} - set(context.inbox.sources))
    cases, secrets = await context.doctor.look()
    handlers: dict[str, list[dict[str, Any]]] = {name: [] for name in context.inbox.sources}
    for row in await context.store.live_handlers():
        handlers.setdefault(row["source"], []).append(row)
    refused = {name: last_refusals(context, name, cases.get(name)) for name in context.inbox.sources}
    return context.render(
        request, "sources.html", sources=[about(context, name) for name in sorted(context.inbox.sources)], gone=gone,
        standing=standing, unknown=meter.last_refused.get("unknown"), advice=ADVICE, base=context.door_url(request),
        since=meter.started, refused=refused, secrets=secrets, handlers=handlers, done=request.query_params.get("done"),
    )  # fmt: skip


def about(context: Context, name: str) -> dict[str, Any]:
    """What may be told of a source. Of its secrets, how many there are."""
    source = context.inbox.sources[name]
    provider, horizon = source.provider, context.inbox.horizons[name]
    return {
        "source": name,
        "provider": source.provider_name,
        "title": provider.title or source.provider_name,
        "support": provider.support,
        "docs": provider.docs,
        "is_verified": source.is_verified,
        "signed_by": _signed_by(source),
        "secrets": len(source.settings.secrets),
        "secret": provider.secret,
        "mode": source.settings.mode,
        "types": None if source.settings.types is None else list(source.settings.types),
        "max_body": source.max_body,
        "retries": provider.retries.schedule,
        "retries_for": provider.retries.horizon,
        "dedupe_window": as_duration(horizon.receipts),
        "payload_retention": as_duration(horizon.payloads),
        "notes": list(provider.notes),
    }


Refusal = dict[str, Any]


def last_refusals(context: Context, name: str, case: Refusal | None) -> tuple[Refusal | None, Refusal | None]:
    """The last refusal, and the last one before it that the doctor has looked at, where those are not alike.

    This process has seen the last one, or any process has kept it as a sample. The doctor's word is on the sample; it
    holds for a later refusal with the same reason and detail.
    """
    seen = context.inbox.meter.last_refused.get(name)
    examined = None if case is None else {
        "at": case["rejected_at"], "reason": case["reason"], "detail": case["detail"], "findings": case["findings"]
    }  # fmt: skip
    if seen is None or (examined is not None and (rfc3339(seen.at) or "") < examined["at"]):
        return examined, None
    last: Refusal = {"at": rfc3339(seen.at), "reason": seen.reason, "detail": seen.detail, "findings": []}
    if examined is not None and (last["reason"], last["detail"]) == (examined["reason"], examined["detail"]):
        return {**last, "findings": examined["findings"]}, None
    return last, examined


# -- pausing ----------------------------------------------------------------------------------------------------------


async def change(
    context: Context, request: Request, *, paused: bool, reason: str | None = None, seconds: float | None = None
) -> str:
    """Pause or resume a source that is there; one that is as it should be already is left so."""
    name: str = request.path_params["source"]
    standing = await context.overview.standing()
    if name not in {*context.inbox.sources, *standing["sources"], *standing["paused"]}:
        raise Problem(404, "not_found", "There is no such source.")
    store = context.store
    actor = principal(request).name
    await (store.pause(name, actor, reason=reason, seconds=seconds) if paused else store.resume(name, actor))
    context.overview.forget()
    await store.notify()
    if context.inbox.worker is not None:
        context.inbox.worker.wake()
    return name


async def pause(context: Context, request: Request) -> Response:
    name = await change(context, request, paused=True)
    return RedirectResponse(f"/sources?done=paused#source-{quote(name)}", 303)


async def resume(context: Context, request: Request) -> Response:
    name = await change(context, request, paused=False)
    return RedirectResponse(f"/sources?done=resumed#source-{quote(name)}", 303)


def _signed_by(source: Source) -> str:
    return " or ".join(dict.fromkeys(signature.algorithm for signature in source.provider.signatures))


PAGE = Page(
    "Sources",
    "/sources",
    (
        Action("GET", "/sources", show),
        Action("POST", "/sources/{source}/pause", pause, scope="admin"),
        Action("POST", "/sources/{source}/resume", resume, scope="admin"),
    ),
)
