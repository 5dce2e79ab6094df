"""The HTTP responses of the receiver: status, JSON body and headers for each outcome of a delivery.

202  first delivery, committed            {"status":"accepted","event_id":…,"receipt":…}
202  in the source's queue or the spool   {"status":"accepted","event_id":…}
200  duplicate                            {"status":"duplicate",…}
200  left out by a filter, recorded       {"status":"ignored",…}
4xx/5xx                                   {"error":{"code":…,"message":…}}
"""

from collections.abc import Sequence

import msgspec

from oncehook.model.claim import Claim, Claimed
from oncehook.model.states import State
from oncehook.providers.definition import AckOverride

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")

Header = tuple[bytes, bytes]
Response = tuple[int, bytes, tuple[Header, ...]]  # status, body, headers

_encode = msgspec.json.Encoder().encode

ERRORS: dict[str, tuple[int, str]] = {
    "bad_signature": (401, "The request is not signed with a secret of this source."),
    "stale_timestamp": (401, "The signed timestamp is too far from now."),
    "malformed": (400, "The request is not valid for this source."),
    "unknown_source": (404, "There is no source at this address."),
    "unknown_tenant": (404, "There is no tenant at this address."),
    "tenant_missing": (404, "Deliver to the address of a tenant: the name of the tenant follows this address."),
    "rate_limited": (429, "The deliveries to this address arrive too fast. Deliver the event again later."),
    "too_large": (413, "The body is larger than this source accepts."),
    "head_too_large": (431, "The request line and headers are too large."),
    "timeout": (408, "The body did not arrive in time."),
    "unsupported_media_type": (415, "This content type or encoding is not accepted."),
    "method_not_allowed": (405, "Use POST to deliver an event."),
    "foreign_origin": (403, "A web page sent this request, and the source does not verify signatures."),
    "handler_failed": (500, "The handler failed. Deliver the event again."),
    "unavailable": (503, "The event cannot be recorded now. Deliver it again later."),
}


def rejected_response(code: str, *headers: Header, message: str | None = None) -> Response:
    """The response to a rejected delivery. The body never says which part of a signature was wrong."""
    status, default_message = ERRORS[code]
    return status, _encode({"error": {"code": code, "message": message or default_message}}), (JSON, *headers)


def unavailable_response(retry_after: int, message: str | None = None) -> Response:
    """The response that asks the sender to deliver again in `retry_after` seconds."""
    return rejected_response("unavailable", (b"retry-after", str(retry_after).encode()), message=message)


def accepted_response(
    claims: Sequence[Claim], claimed: Sequence[Claimed], answer: AckOverride, *, batch: bool
) -> Response:
    """The response to a delivery whose events are all committed."""
    if answer.body is not None:
        return answer.status or 200, answer.body.encode(), (TEXT,)
    status, body = _batch_body(claims, claimed) if batch else _event_body(claims[0], claimed[0])
    return answer.status or status, body, (JSON,)


def published_response(claims: Sequence[Claim], answer: AckOverride, *, batch: bool) -> Response:
    """The response to a delivery that waits in the queue of its source. It has no receipt yet."""
    if answer.body is not None:
        return answer.status or 200, answer.body.encode(), (TEXT,)
    counts = {"accepted": len(claims)} if batch else {"event_id": claims[0].event_id}
    return answer.status or 202, _encode({"status": "accepted", **counts}), (JSON,)


def inline_failed_response() -> Response:
    """The response after an inline handler failed. The sender delivers again, which is the next attempt."""
    return rejected_response("handler_failed")


def inline_processed_response(
    claims: Sequence[Claim], claimed: Sequence[Claimed], outcomes: Sequence[str], answer: AckOverride, *, batch: bool
) -> Response:
    """The response to an inline delivery whose events are all finished.

    Each of `outcomes` is `processed`, `duplicate`, `ignored` or `failed` (a dead letter).
    """
    if answer.body is not None:
        return answer.status or 200, answer.body.encode(), (TEXT,)
    if batch:
        counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        return answer.status or 200, _encode({"status": "processed", **counts}), (JSON,)
    body = {"status": outcomes[0], "event_id": claims[0].event_id, "receipt": claimed[0].receipt}
    return answer.status or 200, _encode(body), (JSON,)


def _event_body(claim: Claim, claimed: Claimed) -> tuple[int, bytes]:
    """The status and body for a delivery with one event."""
    if not claimed.fresh:
        status, outcome = 200, "duplicate"
    elif claim.status is State.IGNORED:
        status, outcome = 200, "ignored"
    else:
        status, outcome = 202, "accepted"
    return status, _encode({"status": outcome, "event_id": claim.event_id} | _receipt(claimed))


def _receipt(claimed: Claimed) -> dict[str, int]:
    """The number of the receipt, unless the event is in the spool and has none yet."""
    return {"receipt": claimed.receipt} if claimed.receipt else {}


def _batch_body(claims: Sequence[Claim], claimed: Sequence[Claimed]) -> tuple[int, bytes]:
    """The status and body for a delivery with many events: one count per outcome."""
    counts = {"accepted": 0, "duplicate": 0, "ignored": 0, "failed": 0}
    for claim, result in zip(claims, claimed, strict=True):
        counts[_outcome(claim, result)] += 1
    fresh = counts["accepted"] + counts["failed"]
    return 202 if fresh else 200, _encode({"status": "accepted", **counts})


def _outcome(claim: Claim, claimed: Claimed) -> str:
    if not claimed.fresh:
        return "duplicate"
    return {State.IGNORED: "ignored", State.FAILED: "failed"}.get(claim.status, "accepted")
