"""The outcome of a request: status codes and Retry-After."""

from email.utils import formatdate

import pytest

from oncehook.http_client.exchange import Response
from oncehook.http_client.outcome import LONGEST_WAIT, retry_after

NOW = 1_763_200_000.0
WAITS: list[tuple[int, str | None, float | None]] = [
    (429, "0", 1.0),
    (429, "7", 7.0),
    (503, " 60 ", 60.0),
    (503, "999999999", LONGEST_WAIT),
    (503, formatdate(NOW + 90, usegmt=True), 90.0),
    (503, formatdate(NOW - 90, usegmt=True), 1.0),
    (503, formatdate(NOW + 9e6, usegmt=True), LONGEST_WAIT),
    *[
        (503, odd, None)
        for odd in (None, "", "-1", "1.5", "soon", "9" * 30, "١٢", "1e3", "Mon, 99 Foo 99999 99:99:99 GMT")
    ],
    (500, "7", None),
    (200, "7", None),
]


@pytest.mark.parametrize(("status", "value", "wait"), WAITS)
def test_retry_after_is_seconds_or_a_date_and_has_a_limit(status: int, value: str | None, wait: float | None) -> None:
    assert retry_after(Response(status, {} if value is None else {"retry-after": value}, b""), NOW) == wait
