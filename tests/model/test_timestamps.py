"""Timestamps as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from oncehook.model.timestamps import rfc3339

LENGTH = len("2026-11-15T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 11, 15, tzinfo=UTC), "2026-11-15T00:00:00.000000Z"),
        (datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC), "2026-11-15T01:02:03.000004Z"),
        (datetime(2026, 11, 15, 2, tzinfo=timezone(timedelta(hours=2))), "2026-11-15T00:00:00.000000Z"),
        (datetime(7, 1, 1, tzinfo=UTC), "0007-01-01T00:00:00.000000Z"),
    ],
)
def test_time_is_formatted_in_utc_with_a_fixed_length(moment: datetime, text: str) -> None:
    assert rfc3339(moment) == text and len(text) == LENGTH


def test_texts_sort_like_the_times() -> None:
    moments = [datetime(2026, 11, 15, tzinfo=UTC) + timedelta(microseconds=step) for step in (0, 1, 10, 10**6)]
    assert sorted(map(str, map(rfc3339, moments))) == [rfc3339(moment) for moment in moments]


def test_no_time_has_no_text() -> None:
    assert rfc3339(None) is None


def test_time_that_utc_cannot_represent_is_an_overflow() -> None:
    with pytest.raises(OverflowError):
        rfc3339(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))))
