"""Values of a payload: a missing or malformed value is None or empty, and no function raises."""

from datetime import UTC, datetime
from typing import Any

import pytest

from oncehook.email.event import MAX_METADATA_LENGTH, MAX_REASON_LENGTH, MAX_TAGS
from oncehook.email.payload_values import (
    as_text,
    first_text,
    first_time,
    form_fields,
    header_values,
    parse_json_list,
    parse_json_text,
    read_metadata,
    read_tags,
    value_at,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), ("", None), (17, "17"), (True, None), (None, None), ([], None), ("a\x00", "a\ufffd")],
)
def test_as_text_accepts_strings_and_integers(value: Any, expected: str | None) -> None:
    assert as_text(value) == expected


def test_first_time_skips_values_that_are_not_times() -> None:
    expected = datetime(2025, 11, 15, 9, 46, 40, tzinfo=UTC)
    assert first_time(None, True, {}, "soon", 1763200000, "2020-01-01") == expected
    assert first_time("2025-11-15T09:46:40Z") == first_time(1763200000.0) == expected
    assert first_time() is None


def test_first_text_is_cut_to_the_longest_reason() -> None:
    assert first_text(None, "", "x" * 5000, "y") == "x" * MAX_REASON_LENGTH


def test_tags_are_distinct_in_order_and_limited() -> None:
    assert read_tags("b", ["a", "b", 1, None, ""], None) == ("b", "a")
    assert len(read_tags([f"tag {number}" for number in range(100)])) == MAX_TAGS


def test_metadata_has_plain_values_only() -> None:
    value = {"a": 1, "b": [1], "c": {"d": 1}, "e\x00": "f\x00", "g": None, "h": 2**70}
    assert read_metadata(value) == {"a": 1, "e\ufffd": "f\ufffd", "g": None, "h": str(2**70)}
    assert read_metadata('{"a": 1}') == {"a": 1}
    assert read_metadata("no json") == read_metadata([1]) == {}


def test_metadata_that_is_too_large_is_left_out() -> None:
    assert read_metadata({"a": "x" * (MAX_METADATA_LENGTH - 1)}) != {}
    assert read_metadata({"a": "x" * MAX_METADATA_LENGTH}) == {}


def test_json_in_a_string_is_parsed_or_none() -> None:
    assert parse_json_text('{"a": [1]}') == {"a": [1]}
    assert parse_json_text("{") is None and parse_json_text(5) is None and parse_json_text("[" * 5000) is None
    assert parse_json_list("[1, 2]") == [1, 2] and parse_json_list('{"a": 1}') == []


def test_repeated_form_field_is_a_list() -> None:
    assert form_fields(b"a=1&b=2&a=3&c=") == {"a": ["1", "3"], "b": "2", "c": ""}
    assert form_fields(b"\xff") == {} and form_fields(b"a=1&" * 2000) == {}


def test_header_values_are_found_by_name_in_any_case() -> None:
    headers = [{"name": "X-Tag", "value": "a"}, {"name": "x-tag", "value": "b"}, {"name": "X-Tag"}, "odd"]
    assert header_values({"headers": headers}, "x-tag") == ["a", "b"]
    assert header_values({"headers": "odd"}, "x-tag") == header_values({}, "x-tag") == []


def test_value_at_a_path_of_another_shape_is_none() -> None:
    assert value_at({"a": {"b": 1}}, "a.b") == 1
    assert value_at({"a": [1]}, "a.b.c") is None and value_at(None, "a") is None
