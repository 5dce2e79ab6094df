"""Parsers of settings: each returns the value, or says what it expects."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model import values
from oncehook.model.values import LONGEST, any_of, as_duration, duration, networks, not_allowed, one_of, positive


@pytest.mark.parametrize(
    ("parse", "value", "parsed"),
    [
        (values.text, "a", "a"),
        (values.address, "https://a.example/x?y=1", "https://a.example/x?y=1"),
        (values.boolean, "Yes", True),
        (values.boolean, False, False),
        (values.whole_number, "12", 12),
        (values.ratio, 2, 2.0),
        (values.texts, ["a", "b"], ("a", "b")),
        (values.locators, "object_id", ("object_id",)),
        (values.conditions, {"a": ("x", 1), "any": [{"b": {"gt": 1}}]}, {"a": ["x", 1], "any": [{"b": {"gt": 1}}]}),
        (values.rate, "100/m", 100 / 60),
        (values.duration, "90s", 90.0),
        (values.duration, "250ms", 0.25),
        (values.duration, "1w", 604800.0),
        (values.duration, 5, 5.0),
        (values.size, "1MiB", 2**20),
        (values.size, "500kB", 500_000),
    ],
)
def test_value_is_parsed(parse: Callable[[Any], Any], value: Any, parsed: Any) -> None:
    assert parse(value) == parsed


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (values.text, " ", "expected a string"),
        (values.address, "localhost:3000", "expected an address such as"),
        (values.boolean, "maybe", "expected true or false"),
        (values.whole_number, True, "expected a whole number"),
        (values.whole_number, "1.5", "expected a whole number"),
        (values.ratio, 0.5, "expected a number, 1 or more"),
        (values.texts, "a", "expected a list of strings"),
        (values.conditions, {}, "expected a table with one or more conditions"),
        (values.conditions, "a = 1", "expected a table with one or more conditions"),
        (values.rate, "0/s", "expected a rate such as 50/s"),
        (values.duration, "soon", "expected a duration such as"),
        (values.duration, -1, "expected a duration such as"),
        (values.duration, "\u0661s", "expected a duration such as"),
        (values.size, "1 mile", "expected a size such as"),
        (values.positive_duration, 0, "expected more than 0 and at most 366d"),
        (values.positive_duration, LONGEST + 1, "at most 366d"),
        (positive(duration), "0s", "expected more than 0"),
        (one_of("auto", "never"), "always", "expected one of auto, never"),
        (any_of("a", "b"), ["a", "c"], "'c' is not a known value; the allowed values are a, b"),
        (networks, ["10.0.0.1/8"], "is not an address such as 10.0.0.5 or a network"),
        (networks, ["0.0.0.0/0"], "contains every address"),
    ],
)
def test_wrong_value_is_an_error_that_says_what_is_expected(
    parse: Callable[[Any], Any], value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse(value)


@given(st.integers(min_value=1, max_value=366 * 86400))
def test_formatted_duration_is_parsed_to_the_same_seconds(seconds: int) -> None:
    assert duration(as_duration(float(seconds))) == seconds


def test_message_about_a_value_that_is_not_allowed_has_the_closest_one() -> None:
    message = not_allowed("status", "procesed", ["processed", "failed", ""])
    assert message == "status is 'procesed': did you mean processed? the allowed values are failed, processed"
    assert "did you mean" not in not_allowed("status", "x", ["processed"])


@pytest.mark.parametrize("text", ["50/s", "1/s", "100/m", "3/h", "7201/h"])
def test_rate_is_formatted_as_it_is_written(text: str) -> None:
    assert values.as_rate(values.rate(text)) == text


def test_rate_that_is_no_whole_number_is_per_hour() -> None:
    assert values.as_rate(values.rate("0.5/h")) == "0.5/h"
