"""Classifies the response of a target: success, a failure to retry, or a final failure. Reads Retry-After."""

import re
from collections.abc import Awaitable
from datetime import UTC

from oncehook.concurrency.clock import Clock
from oncehook.http_client.circuit_breaker import Call
from oncehook.http_client.exchange import Response
from oncehook.model.errors import OncehookError, SendFailed, SendRefused
from oncehook.model.retry import Fail, RetryLater

LONGEST_WAIT = 3600.0
"""The longest Retry-After that Oncehook follows, in seconds."""


class UnexpectedStatus(OncehookError):
    """The target answered with a status other than 2xx."""


async def send_and_record(call: Call, sending: Awaitable[Response], clock: Clock) -> tuple[Response, float | None]:
    """Return the response and its Retry-After, and record success or failure on the circuit breaker.

    SendRefused is not recorded: nothing was sent, so it says nothing about the target's health.
    """
    try:
        response = await sending
    except SendRefused:
        raise
    except SendFailed:
        call.failed()
        raise
    wait = retry_after(response, clock.now())
    if response.status == 429 or response.status >= 500:
        call.failed(wait=wait)
    else:
        call.succeeded()
    return response, wait


def raise_for_status(origin: str, status: int, wait: float | None) -> None:
    """Return for 2xx and raise for every other status. Messages never quote the body: it may repeat the event."""
    if 200 <= status < 300:
        return
    if status == 410:
        raise Fail(f"{origin} answered 410 Gone, so this event is not retried")
    if wait is not None:
        raise RetryLater(f"{origin} answered {status} with Retry-After", after=wait)
    if 300 <= status < 400:
        raise UnexpectedStatus(f"{origin} answered {status}: redirects are not followed, configure the final address")
    raise UnexpectedStatus(f"{origin} answered {status}")


def retry_after(response: Response, now: float) -> float | None:
    """The Retry-After of a 429 or 503, as seconds from now. Seconds and dates are read; the result is 1 s to 1 h."""
    if response.status not in (429, 503):
        return None
    value = response.headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", value):
        wait = float(value)
    else:
        from email.utils import parsedate_to_datetime  # most targets send seconds, and `email` imports 14 modules

        try:
            date = parsedate_to_datetime(value)
            wait = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(max(wait, 1.0), LONGEST_WAIT)
