"""Template filters: times, durations, numbers, and values that come from a sender."""

from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import Markup

from oncehook.web import filters

TIME = datetime(2026, 11, 15, 3, 4, 5, 678000, UTC)


def test_hidden_characters_of_every_value_are_made_visible() -> None:
    assert filters.finalize("a\u202eb\x00") == "a\\u202eb\\x00"
    assert filters.finalize(None) == "" and filters.finalize(5) == 5
    assert filters.finalize(Markup("<b>\u202e</b>")) == "<b>\u202e</b>", "markup from our templates stays unchanged"


def test_time_is_shown_to_the_second_with_full_precision_on_hover() -> None:
    html = filters.when(TIME)
    assert 'datetime="2026-11-15T03:04:05.678000Z"' in html and ">2026-</span>11-15 03:04:05</time>" in html
    assert filters.when("2026-11-15T03:04:05.678000Z") == html
    assert filters.when(None) == "–"


def test_age_is_shown_in_its_largest_unit() -> None:
    now = datetime.now(UTC)
    for age, text in (
        (timedelta(days=3, hours=5), "3d ago"),
        (timedelta(minutes=45), "45m ago"),
        (timedelta(), "1s ago"),
    ):
        assert filters.ago(now - age).endswith(f">{text}</time>")
    assert filters.ago(now + timedelta(hours=1)).endswith(">1s ago</time>"), "a clock that is ahead is not an age"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "–"), (-5, "–"), (0.4, "<1s"), (59, "59s"), (3600, "1h"), (200_000, "2d")]
)
def test_duration_is_shown_in_its_largest_unit(seconds: float | None, text: str) -> None:
    assert filters.span(seconds) == text


def test_names_in_backticks_become_code_and_the_rest_is_escaped() -> None:
    html = filters.code("Set `public_url` <b>now</b>.")
    assert html == 'Set <code class="nowrap">public_url</code> &lt;b&gt;now&lt;/b&gt;.'
    assert 'class=""' in filters.code(f"`{'x' * 50}`"), "a long name may wrap"
    assert "<script>" not in filters.code("`<script>`")


def test_form_value_is_escaped_and_otherwise_unchanged() -> None:
    assert filters.verbatim('a"\u202e<') == "a&#34;\u202e&lt;"


def test_numbers_sizes_and_counts_have_separators_and_units() -> None:
    assert (filters.number(1204), filters.noun(1, "event"), filters.noun(1204, "event")) == (
        "1,204",
        "1 event",
        "1,204 events",
    )
    assert (filters.up_to(9_999, 10_000), filters.up_to(10_000, 10_000)) == ("9,999", "10,000+")
    assert [filters.size(n) for n in (12, 1536, 2**21)] == ["12 B", "1.5 KiB", "2 MiB"]
    assert (filters.milliseconds(0.0123), filters.milliseconds(0.25)) == ("12.3 ms", "250 ms")


@pytest.mark.parametrize(
    ("rate", "text"), [(50.0, "50/s"), (2.5, "2.5/s"), (100 / 60, "1.66667/s"), (0.5, "30/m"), (1 / 3600, "1/h")]
)
def test_rate_is_shown_in_a_unit_in_which_it_is_at_least_one(rate: float, text: str) -> None:
    assert filters.per_second(rate) == text
