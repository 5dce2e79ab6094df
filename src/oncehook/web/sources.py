"""Describes sources, and pauses and resumes them, for the dashboard and the API."""

from typing import Any

from starlette.requests import Request

from oncehook.handlers.broker_forward import forward_origin
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import as_duration
from oncehook.providers.source import Source
from oncehook.runtime.managed_tenants import is_managed
from oncehook.web.page import Context, Problem, principal


def describe_source(context: Context, name: str) -> dict[str, Any]:
    """The properties of a source, with the number of its secrets but not their values."""
    source = context.runtime.sources[name]
    provider, horizon = source.provider, context.runtime.horizons[name]
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
        "forward": _describe_forward(context, source),
        "types": None if source.settings.types is None else list(source.settings.types),
        "where": source.settings.where,
        "max_body": source.max_body,
        "retries": provider.retries.schedule,
        "retries_for": provider.retries.horizon,
        "dedupe_window": as_duration(horizon.receipts),
        "payload_retention": as_duration(horizon.payloads),
        "notes": list(provider.notes),
        "is_managed": name in context.runtime.managed_sources,
        "tenants": _tenants(context, name),
    }


Rejection = dict[str, Any]


def last_rejections(context: Context, name: str, case: Rejection | None) -> tuple[Rejection | None, Rejection | None]:
    """Return the latest rejection, and the latest one that the doctor examined if that one has a different cause.

    The latest rejection is known to this process, or is the newest sample of any process. The doctor examines samples.
    Its findings also apply to a later rejection with the same reason and detail.
    """
    latest = context.runtime.reception.stats.last_rejections.get(name)
    examined = None
    if case is not None:
        examined = {"at": case["rejected_at"], **{name: case[name] for name in ("reason", "detail", "findings")}}
    if latest is None or (examined is not None and (rfc3339(latest.at) or "") < examined["at"]):
        return examined, None
    last: Rejection = {"at": rfc3339(latest.at), "reason": latest.reason, "detail": latest.detail, "findings": []}
    if examined is not None and (last["reason"], last["detail"]) == (examined["reason"], examined["detail"]):
        return {**last, "findings": examined["findings"]}, None
    return last, examined


async def set_paused(
    context: Context, request: Request, *, paused: bool, reason: str | None = None, seconds: float | None = None
) -> str:
    """Pause or resume a source and return its name. Raises Problem if there is no such source."""
    name: str = request.path_params["source"]
    snapshot = await context.overview.snapshot()
    if name not in {*context.runtime.sources, *snapshot["sources"], *snapshot["paused"]}:
        raise Problem(404, "not_found", "Source not found.")
    store = context.store
    actor = principal(request).name
    await (
        store.pauses.pause(name, actor, reason=reason, seconds=seconds) if paused else store.pauses.resume(name, actor)
    )
    context.overview.invalidate()
    await store.wakeups.notify()
    context.runtime.wake_worker()
    return name


def _describe_forward(context: Context, source: Source) -> dict[str, str] | None:
    """The target of a source with `forward`, and the circuit breaker that this process has for it."""
    if not source.settings.forward:
        return None
    origin = forward_origin(source.settings.forward)
    return {"origin": origin, "circuit": context.runtime.breakers[origin].state}


def _signed_by(source: Source) -> str:
    return " or ".join(dict.fromkeys(signature.algorithm for signature in source.provider.signatures))


def _tenants(context: Context, name: str) -> str | None:
    """How the tenants of a source are found; None if it has none."""
    cache = context.runtime.tenants.get(name)
    if cache is None:
        return None
    return "managed" if is_managed(cache) else "lookup"
