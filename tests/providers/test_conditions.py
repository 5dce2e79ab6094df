"""The conditions of a filter: each operator, the values that it accepts, and the operands that it rejects."""

from typing import Any

import pytest
from hypothesis import given

from oncehook.model.errors import ConfigurationError
from oncehook.providers.conditions import OPERATORS, make_condition, number_of, shown
from oncehook.providers.expressions import is_storable
from tests.support.odd_payloads import JSON

CASES = [
    ("equals", True, [True], [1, "true", None, False, [True]]),
    ("equals", 1, [1, 1.0], [True, "1", None, 2]),
    ("equals", 0, [0, 0.0, -0.0], [False, None, "", "0", []]),
    ("equals", "eur", ["eur"], ["EUR", "euro", None, ["eur"]]),
    ("in", ["eur", 5, False], ["eur", 5, 5.0, False], ["usd", 0, True, None, ["eur"], {"eur": 1}]),
    ("prefix", "eu-", ["eu-", "eu-1"], ["us-eu-", "eu", None, 5, ["eu-1"]]),
    ("exists", True, [0, False, "", [], {}], [None]),
    ("exists", False, [None], [0, False, "", [], {}]),
    ("gt", 100, [100.5, 101, "100.01", 10**400], [100, "100", "abc", True, None, [], "1e999x"]),
    ("gte", 100, [100, "100", "1e2"], [99.9, "99", "", " 100", "0x64", "٣٠٠"]),
    ("lt", 5, [4, -(10**400), "-1"], [5, "5", None, False]),
    ("lte", 5.5, [5.5, "5.5", 5], [6, "6", {}]),
    ("gte", "2026-01-01", ["2026-01-01", "2026-11-16T10:00:00Z"], ["2025-12-31", 20260101, None]),
    ("lt", "b", ["a", "", "az"], ["b", 1, None]),
]


@pytest.mark.parametrize(("operator", "operand", "accepted", "left_out"), CASES)
def test_operator_accepts_these_values(operator: str, operand: Any, accepted: list[Any], left_out: list[Any]) -> None:
    holds = make_condition("path", operator, operand, "where.path").holds
    assert [value for value in accepted if not holds(value)] == []
    assert [value for value in left_out if holds(value)] == []


WRONG = [
    ("equals", None, "use { exists = false }"),
    ("equals", {"a": 1}, "expected text, a number, true or false"),
    ("equals", float("inf"), "expected a finite number"),
    ("equals", b"bytes", 'Write a time as text, such as "2026-01-31"'),
    ("in", "eur", 'expected a list such as ["eur", "usd"]'),
    ("in", [], "an empty list can never match"),
    ("in", [["eur"]], "expected text, a number, true or false"),
    ("prefix", "", "expected text"),
    ("prefix", ["eu-"], "expected text"),
    ("exists", "yes", "expected true or false"),
    ("gt", True, "expected a number or text"),
    ("gte", [1], "expected text, a number"),
    ("lt", float("nan"), "expected a finite number"),
    ("lte", None, "expected text, a number"),
]


@pytest.mark.parametrize(("operator", "operand", "sentence"), WRONG)
def test_operand_that_the_operator_cannot_use_is_an_error_that_names_the_key(
    operator: str, operand: Any, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_condition("path", operator, operand, f"sources.stripe.where.path.{operator}")
    assert str(caught.value).startswith(f"sources.stripe.where.path.{operator} is ") and sentence in str(caught.value)


@given(JSON)
def test_no_value_makes_a_condition_raise(value: Any) -> None:
    for operator in OPERATORS:
        operand: Any = {"in": ["a", 1, True], "prefix": "a", "exists": True}.get(operator, 5)
        assert make_condition("path", operator, operand, "where").holds(value) in (True, False)


@given(JSON)
def test_every_value_can_be_shown_and_stored(value: Any) -> None:
    text = shown(value)
    assert is_storable(text) and "\n" not in text


def test_long_values_are_shortened() -> None:
    assert len(shown("x" * 10_000)) < 100
    assert shown(10**5000) == "a long number"
    assert make_condition("path", "in", list(range(1000)), "where").expected.endswith("8, 9, …]")


@pytest.mark.parametrize(
    ("text", "number"), [("19.99", 19.99), ("-5", -5), ("+1e3", 1000.0), ("9" * 41, None), ("1_000", None), ("", None)]
)
def test_number_that_is_written_as_text_is_read(text: str, number: float | None) -> None:
    assert number_of(text) == number
