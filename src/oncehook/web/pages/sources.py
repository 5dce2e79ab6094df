"""Sources: where each is, who sends there, and how it has been doing."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oncehook.source import Source
from oncehook.values import as_duration
from oncehook.web.page import Action, Context, Page

ADVICE = {
    "bad_signature": "No secret here signed it. Compare the secret with the sender's, or add the sender's new one "
    "beside the old. Something between that changes the body does the same.",
    "stale_timestamp": "It was signed too long ago or ahead of now. Compare this machine's clock with the time.",
    "malformed": "It was signed well and cannot be read. Compare the provider's format with what the sender sends.",
    "too_large": "Its body is larger than max_body allows for this source.",
    "timeout": "Its body did not arrive in time.",
    "unsupported_media_type": "Its content type is none that this provider sends.",
    "method_not_allowed": "It was not a POST: somebody looked, or the address is used for something else.",
    "unknown_source": "The address names no source: compare the path with the list here.",
}


async def show(context: Context, request: Request) -> Response:
    standing, meter = await context.overview.standing(), context.inbox.meter
    gone = sorted(set(standing["sources"]) - set(context.inbox.sources))
    return context.render(
        request, "sources.html", sources=[about(context, name) for name in sorted(context.inbox.sources)], gone=gone,
        standing=standing, refused=meter.last_refused, advice=ADVICE, base=context.base_url(request),
        since=meter.started,
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
        "is_verified": source.verifier is not None,
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


def _signed_by(source: Source) -> str:
    return " or ".join(dict.fromkeys(signature.algorithm for signature in source.provider.signatures))


PAGE = Page("Sources", "/sources", (Action("GET", "/sources", show),))
