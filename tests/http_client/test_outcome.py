"""Responses of a target: success, failures to retry, final failures, and Retry-After."""

from email.utils import formatdate

import pytest

from oncehook.concurrency.clock import SYSTEM
from oncehook.http_client.circuit_breaker import FAILURES, CircuitBreaker
from oncehook.http_client.exchange import Response
from oncehook.http_client.outcome import LONGEST_WAIT, UnexpectedStatus, raise_for_status, retry_after, send_and_record
from oncehook.model.errors import SendFailed, SendRefused
from oncehook.model.retry import Fail, RetryLater

NOW = 1_763_200_000.0
MALFORMED = (None, "", "-1", "1.5", "soon", "9" * 30, "١٢", "1e3", "Mon, 99 Foo 99999 99:99:99 GMT")


def response(status: int, wait: str | None = None) -> Response:
    return Response(status, {} if wait is None else {"retry-after": wait}, b"")


async def answer(result: Response | Exception) -> Response:
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize(
    ("status", "value", "wait"),
    [
        (429, "0", 1.0),
        (429, "7", 7.0),
        (503, " 60 ", 60.0),
        (503, "999999999", LONGEST_WAIT),
        (503, formatdate(NOW + 90, usegmt=True), 90.0),
        (503, formatdate(NOW - 90, usegmt=True), 1.0),
        (503, formatdate(NOW + 9e6, usegmt=True), LONGEST_WAIT),
        *[(503, value, None) for value in MALFORMED],
        (500, "7", None),
        (200, "7", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_has_limits(status: int, value: str | None, wait: float | None) -> None:
    assert retry_after(response(status, value), NOW) == wait


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_2xx_is_success(status: int) -> None:
    raise_for_status("http://x", status, None)


@pytest.mark.parametrize(
    ("status", "wait", "error", "message"),
    [
        (410, None, Fail, "http://x answered 410 Gone, so this event is not retried"),
        (410, 5.0, Fail, "http://x answered 410 Gone, so this event is not retried"),
        (503, 5.0, RetryLater, "http://x answered 503 with Retry-After"),
        (302, None, UnexpectedStatus, "http://x answered 302: redirects are not followed, configure the final address"),
        (404, None, UnexpectedStatus, "http://x answered 404"),
        (500, None, UnexpectedStatus, "http://x answered 500"),
    ],
)
def test_other_status_raises_an_error_that_decides_about_the_retry(
    status: int, wait: float | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        raise_for_status("http://x", status, wait)
    assert str(caught.value) == message
    assert not isinstance(caught.value, RetryLater) or caught.value.after == 5.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("result", "failures"),
    [
        (response(200), 0),
        (response(404), 0),
        (response(500), 1),
        (response(429), 1),
        (SendFailed("http://x cannot be reached"), 1),
        (SendRefused("http://x has a private address"), 0),
    ],
    ids=str,
)
async def test_breaker_counts_failures_of_the_target_only(result: Response | Exception, failures: int) -> None:
    breaker = CircuitBreaker("http://x", 1)
    async with breaker.call() as call:
        if isinstance(result, Exception):
            with pytest.raises(type(result)):
                await send_and_record(call, answer(result), SYSTEM)
        else:
            assert await send_and_record(call, answer(result), SYSTEM) == (result, None)
    assert breaker.failures == failures


@pytest.mark.anyio
async def test_retry_after_opens_the_breaker_before_it_has_counted_many_failures() -> None:
    breaker = CircuitBreaker("http://x", 1)
    async with breaker.call() as call:
        assert await send_and_record(call, answer(response(503, "30")), SYSTEM) == (response(503, "30"), 30.0)
    assert FAILURES > 1 and breaker.state == "open"
