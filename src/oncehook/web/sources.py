"""What the pages and the API show of a source, and how they pause and resume it."""

from typing import Any

from starlette.requests import Request

from oncehook.model.timestamps import rfc3339
from oncehook.model.values import as_duration
from oncehook.providers.source import Source
from oncehook.web.page import Context, Problem, principal


def about(context: Context, name: str) -> dict[str, Any]:
    """What may be told of a source. Of its secrets, how many there are."""
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
    seen = context.runtime.reception.stats.last_rejections.get(name)
    examined = None
    if case is not None:
        examined = {"at": case["rejected_at"], **{name: case[name] for name in ("reason", "detail", "findings")}}
    if seen is None or (examined is not None and (rfc3339(seen.at) or "") < examined["at"]):
        return examined, None
    last: Refusal = {"at": rfc3339(seen.at), "reason": seen.reason, "detail": seen.detail, "findings": []}
    if examined is not None and (last["reason"], last["detail"]) == (examined["reason"], examined["detail"]):
        return {**last, "findings": examined["findings"]}, None
    return last, examined


async def change(
    context: Context, request: Request, *, paused: bool, reason: str | None = None, seconds: float | None = None
) -> str:
    """Pause or resume a source that is there; one that is as it should be already is left so."""
    name: str = request.path_params["source"]
    standing = await context.overview.standing()
    if name not in {*context.runtime.sources, *standing["sources"], *standing["paused"]}:
        raise Problem(404, "not_found", "There is no such source.")
    store = context.store
    actor = principal(request).name
    await (
        store.pauses.pause(name, actor, reason=reason, seconds=seconds) if paused else store.pauses.resume(name, actor)
    )
    context.overview.forget()
    await store.wakeups.notify()
    context.runtime.wake_worker()
    return name


def _signed_by(source: Source) -> str:
    return " or ".join(dict.fromkeys(signature.algorithm for signature in source.provider.signatures))
