"""Filters that no event can match are found at start, and no filter that an event can match is called so."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.errors import ConfigurationError
from oncehook.providers import where as filters
from oncehook.providers.where import compile_where

NEVER = [
    ({"a": {"gt": 5, "lt": 5}}, "where.a.lt can never match: no a is above 5 and below 5"),
    ({"a": {"gte": 6, "lte": 5}}, "no a is 6 or more and 5 or less"),
    ({"a": {"gt": "b", "lte": "a"}}, 'no a is above "b" and "a" or less'),
    ({"a": {"equals": "in_1", "prefix": "cus_"}}, 'no a is "in_1" and text that begins with "cus_"'),
    ({"a": {"equals": 5, "in": [6, 7]}}, "no a is 5 and in [6, 7]"),
    ({"a": {"in": [1, 2], "gt": 2}}, "no a is in [1, 2] and above 2"),
    ({"a": {"equals": 1, "exists": False}}, "no a is 1 and absent"),
    ({"a": {"exists": False, "gt": 1}}, "no a is absent and above 1"),
    ({"a": {"prefix": "b", "lt": "a"}}, 'text that begins with "b" and below "a"'),
    ({"a": {"prefix": "b", "gt": "c"}}, 'text that begins with "b" and above "c"'),
    ({"a": {"prefix": "eu-", "gt": 5}}, 'text that begins with "eu-" and above 5'),
    ({"all": [{"a": {"prefix": "x"}}, {"a": {"prefix": "y"}}]}, "where.all[1].a.prefix can never match"),
    ({"all": [{"a": 1}, {"a": 2}]}, "where.all[1].a can never match: no a is 1 and 2"),
    ({"a": 1, "any": [{"b": 1}, {"a": 2}]}, "where.any[1].a can never match: no a is 1 and 2"),
    ({"a": 1, "any": [{"any": [{"a": 2}]}]}, "where.any[0].any[0].a can never match"),
    ({"a": True, "a.b": 2}, 'where."a.b" can never match: a must be true, which has no b'),
    ({"a.b": {"exists": False}, "a.b.c": "x"}, 'where."a.b.c" can never match: a.b must be absent, which has no c'),
    ({"a": {"gte": 5}, "a.b.c": {"gt": 1}}, "a must be 5 or more, which has no b.c"),
    ({"a": '{"c": 1}', "a.b": 1}, "which has no b"),
    ({"@type": 5}, 'where."@type" can never match: @type is text, not 5'),
    ({"@tenant": [True, 1]}, "@tenant is text, not in [true, 1]"),
    ({"@type": {"exists": False}}, "every event has @type"),
    ({"@source": {"exists": False}}, "every event has @source"),
]


@pytest.mark.parametrize(("table", "sentence"), NEVER)
def test_filter_that_can_never_match_is_an_error(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_where(table, "where")
    assert sentence in str(caught.value)


def test_bounds_of_two_kinds_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"where\.a\.lt is 'x': compare with numbers or text, not both"):
        compile_where({"a": {"gt": 1, "lt": "x"}}, "where")


POSSIBLE = [
    {"a": {"gte": 5, "lte": 5}},
    {"a": {"gt": 5, "lt": 6}},
    {"a": {"prefix": "b", "gte": "b", "lt": "c"}},
    {"a": {"prefix": "b", "gt": "bb"}},
    {"a": {"prefix": "-1.", "lt": 0}},
    {"a": {"prefix": "2e", "gt": 100}},
    {"a": {"equals": 1.0, "in": [1, 2]}},
    {"a": {"exists": True}, "a.b": 1},
    {"a": '{"b": 1}', "a.b": 1},
    {"a": 1, "a.b": {"exists": False}},
    {"a": {"exists": False}, "a.b": {"exists": False}},
    {"@tenant": {"exists": False}},
    {"@object_id": {"gt": 5}},
]


@pytest.mark.parametrize("table", POSSIBLE)
def test_filter_that_an_event_can_match_is_not_an_error(table: dict[str, Any]) -> None:
    compile_where(table, "where")


scalars = st.sampled_from(["a", "ab", "b", "1", "12", "1.", '{"b":1}', "", 0, 1, 1.5, 12, True, False])
bounds = st.sampled_from(["a", "ab", "b", "1"]) | st.sampled_from([0, 1, 1.5, 12])
operators = st.fixed_dictionaries(
    {},
    optional={
        "equals": scalars,
        "in": st.lists(scalars, min_size=1, max_size=3),
        "prefix": st.sampled_from(["a", "ab", "1", "{", "-"]),
        "exists": st.booleans(),
        "gt": bounds,
        "gte": bounds,
        "lt": bounds,
        "lte": bounds,
    },
).filter(bool)
paths = st.sampled_from(["a", "a.b", "a.b.c", "a.0", "c"])
flat = st.dictionaries(paths, scalars | operators, min_size=1, max_size=3)
tables = st.recursive(
    flat,
    lambda inner: st.builds(
        lambda table, group, members: {**table, group: members},
        flat,
        st.sampled_from(["any", "all"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=4,
)
leaves = st.none() | scalars
payloads = st.dictionaries(
    st.sampled_from(["a", "c"]),
    leaves | st.dictionaries(st.sampled_from(["b", "0"]), leaves | st.fixed_dictionaries({"c": leaves}), max_size=2),
    max_size=2,
)


@given(tables, st.lists(payloads, min_size=5, max_size=20))
def test_filter_that_matched_an_event_is_never_called_impossible(
    table: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    compiled = filters._compile_table(table, "where", 0)
    if any(compiled.reason(event, {}) is None for event in events) and not compiled.alternatives:
        try:
            compile_where(table, "where")
        except ConfigurationError as error:
            assert "not both" in str(error), f"{table} matches, but: {error}"
