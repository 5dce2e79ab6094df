"""The outcome of a call to a target: success, a failure that is retried, or one that is not; and its Retry-After."""

import re
from collections.abc import Awaitable
from datetime import UTC

from oncehook.concurrency.clock import Clock
from oncehook.http_client.circuit_breaker import Call
from oncehook.http_client.exchange import Answer
from oncehook.model.errors import OncehookError, SendFailed, SendRefused
from oncehook.model.retry import Fail, RetryLater

LONGEST_WAIT = 3600.0
"""The most of a Retry-After that is honoured, in seconds."""


class NotTaken(OncehookError):
    """The target answered, and not with 2xx."""


async def tell(call: Call, sending: Awaitable[Answer], clock: Clock) -> tuple[Answer, float | None]:
    """The answer, and how long it asks to wait; the target is told how it does. A refusal says nothing of it."""
    try:
        answer = await sending
    except SendRefused:
        raise
    except SendFailed:
        call.failed()
        raise
    wait = retry_after(answer, clock.now())
    if answer.status == 429 or answer.status >= 500:
        call.failed(wait=wait)
    else:
        call.succeeded()
    return answer, wait


def judge(origin: str, status: int, wait: float | None) -> None:
    """2xx is success. Of the body nothing is told: it may quote the event."""
    if 200 <= status < 300:
        return
    if status == 410:
        raise Fail(f"{origin} answered 410: it is gone, and this event is not tried again")
    if wait is not None:
        raise RetryLater(f"{origin} answered {status} and asked to wait", after=wait)
    if 300 <= status < 400:
        raise NotTaken(f"{origin} answered {status}: redirects are not followed, write the final address")
    raise NotTaken(f"{origin} answered {status}")


def retry_after(answer: Answer, now: float) -> float | None:
    """How long a target that is too busy asks to be left alone: seconds or a date, at least 1 s, at most an hour."""
    if answer.status not in (429, 503):
        return None
    told = answer.headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", told):
        wait = float(told)
    else:
        from email.utils import parsedate_to_datetime  # most targets answer in seconds, and `email` is 14 modules

        try:
            moment = parsedate_to_datetime(told)
            wait = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(max(wait, 1.0), LONGEST_WAIT)
