"""Outcome → HTTP answer. The table of what a sender is told, and nothing but it.

202  first delivery, committed           {"status":"accepted","event_id":…,"receipt":…}
200  was here before                      {"status":"duplicate",…}
200  not in the allow-list, recorded      {"status":"ignored",…}
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
    "malformed": (400, "The request is not what it claims to be."),
    "unknown_source": (404, "There is no source at this address."),
    "too_large": (413, "The body is larger than this source takes."),
    "head_too_large": (431, "The request line and headers are larger than is taken here."),
    "timeout": (408, "The body did not arrive in time."),
    "unsupported_media_type": (415, "This content type or encoding is not taken here."),
    "method_not_allowed": (405, "Deliver with POST."),
    "foreign_origin": (403, "A web page sent this, and the source verifies nothing."),
    "handler_failed": (500, "The handler failed. Deliver again."),
    "unavailable": (503, "The event cannot be recorded now. Try again."),
}


def refused(code: str, *headers: Header, message: str | None = None) -> Response:
    """The answer to a delivery that is not taken. The body never says which part of a signature was wrong."""
    status, usual = ERRORS[code]
    return status, _encode({"error": {"code": code, "message": message or usual}}), (JSON, *headers)


def unavailable(retry_after: int, message: str | None = None) -> Response:
    return refused("unavailable", (b"retry-after", str(retry_after).encode()), message=message)


def accepted(claims: Sequence[Claim], claimed: Sequence[Claimed], answer: AckOverride, *, batch: bool) -> Response:
    """The answer to a delivery whose events are all committed."""
    if answer.body is not None:
        return answer.status or 200, answer.body.encode(), (TEXT,)
    status, body = _many(claims, claimed) if batch else _one(claims[0], claimed[0])
    return answer.status or status, body, (JSON,)


def inline_failed() -> Response:
    """An inline handler failed: the sender is asked to deliver again, which is the next attempt."""
    return refused("handler_failed")


def inline_processed(
    claims: Sequence[Claim], claimed: Sequence[Claimed], words: Sequence[str], answer: AckOverride, *, batch: bool
) -> Response:
    """The answer to an inline delivery that is done with: processed, here before, ignored, or a dead letter."""
    if answer.body is not None:
        return answer.status or 200, answer.body.encode(), (TEXT,)
    if batch:
        return (
            answer.status or 200,
            _encode({"status": "processed", **{word: words.count(word) for word in sorted(set(words))}}),
            (JSON,),
        )
    body = {"status": words[0], "event_id": claims[0].event_id, "receipt": claimed[0].receipt}
    return answer.status or 200, _encode(body), (JSON,)


def _one(claim: Claim, claimed: Claimed) -> tuple[int, bytes]:
    if not claimed.fresh:
        status, word = 200, "duplicate"
    elif claim.status is State.IGNORED:
        status, word = 200, "ignored"
    else:
        status, word = 202, "accepted"
    return status, _encode({"status": word, "event_id": claim.event_id, "receipt": claimed.receipt})


def _many(claims: Sequence[Claim], claimed: Sequence[Claimed]) -> tuple[int, bytes]:
    counts = {"accepted": 0, "duplicate": 0, "ignored": 0, "failed": 0}
    for claim, outcome in zip(claims, claimed, strict=True):
        counts[_word(claim, outcome)] += 1
    fresh = counts["accepted"] + counts["failed"]
    return 202 if fresh else 200, _encode({"status": "accepted", **counts})


def _word(claim: Claim, claimed: Claimed) -> str:
    if not claimed.fresh:
        return "duplicate"
    return {State.IGNORED: "ignored", State.FAILED: "failed"}.get(claim.status, "accepted")
