"""Filters on payload paths and facts: what they leave out, why, and which tables are errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.errors import ConfigurationError
from oncehook.providers.conditions import make_condition
from oncehook.providers.expressions import is_storable
from oncehook.providers.where import MAX_DEPTH, MAX_REASON, compile_where
from tests.support.odd_payloads import JSON

KEY = "sources.stripe.where"

FULL = {
    "data.object.livemode": True,
    "data.object.currency": ["eur", "usd"],
    "data.object.amount": {"gte": 100, "lt": 5000},
    "@tenant": {"prefix": "eu-"},
    "any": [{"data.object.tags.0": "vip"}, {"all": [{"data.object.note": {"exists": True}}, {"@object_id": "in_1"}]}],
}
FACTS = {"type": "invoice.paid", "tenant": "eu-1", "object_id": "in_1", "source": "stripe"}
OBJECT = {"livemode": True, "currency": "eur", "amount": 250, "tags": ["vip"]}


def reason(table: Any, changes: dict[str, Any], **facts: str | None) -> str | None:
    """Return why a filter leaves out the object above with some changed fields."""
    return compile_where(table, KEY).reason({"data": {"object": {**OBJECT, **changes}}}, {**FACTS, **facts})


@pytest.mark.parametrize(
    ("changes", "facts", "expected"),
    [
        ({}, {}, None),
        ({"amount": "4999.99"}, {}, None),
        ({"tags": [], "note": "x"}, {}, None),
        ({"livemode": False}, {}, "data.object.livemode is false, not true"),
        ({"livemode": None}, {}, "data.object.livemode is absent, not true"),
        ({"currency": "chf"}, {}, 'data.object.currency is "chf", not in ["eur", "usd"]'),
        ({"amount": 99}, {}, "data.object.amount is 99, not 100 or more"),
        ({"amount": 5000}, {}, "data.object.amount is 5000, not below 5000"),
        ({"amount": []}, {}, "data.object.amount is a list, not 100 or more"),
        ({}, {"tenant": "us-1"}, '@tenant is "us-1", not text that begins with "eu-"'),
        ({}, {"tenant": ""}, '@tenant is absent, not text that begins with "eu-"'),
        (
            {"tags": ["new"]},
            {},
            'no alternative holds: data.object.tags.0 is "new", not "vip"; data.object.note is absent, not present',
        ),
    ],
)
def test_filter_returns_the_condition_that_leaves_an_event_out(
    changes: dict[str, Any], facts: dict[str, str], expected: str | None
) -> None:
    assert reason(FULL, changes, **facts) == expected


def test_path_leads_into_lists_and_into_text_that_holds_json() -> None:
    compiled = compile_where({"Message.mail.to.1": "b@example.com"}, KEY)
    assert compiled.reason({"Message": '{"mail": {"to": ["a@example.com", "b@example.com"]}}'}, {}) is None
    assert compiled.reason({"Message": "not JSON"}, {}) == 'Message.mail.to.1 is absent, not "b@example.com"'


@given(JSON, st.dictionaries(st.sampled_from(["type", "tenant", "object_id", "source"]), st.none() | st.text()))
def test_no_payload_makes_a_filter_raise(payload: Any, facts: dict[str, str | None]) -> None:
    text = compile_where(FULL, KEY).reason(payload, facts)
    assert text is not None and is_storable(text) and len(text) <= MAX_REASON


@given(JSON)
def test_no_value_at_a_path_makes_a_filter_raise(value: Any) -> None:
    for name in OBJECT:
        text = reason(FULL, {name: value})
        assert text is None or is_storable(text)


names = st.sampled_from(["any", "all", "a.b", "@type", "gt", "in", "x"]) | st.text()
odd_tables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
)


@given(odd_tables)
def test_table_is_compiled_or_rejected_with_a_sentence(table: Any) -> None:
    try:
        compile_where(table, KEY)
    except ConfigurationError as error:
        assert str(error).startswith(KEY)


WRONG = [
    (5, "sources.stripe.where is 5: expected a table with one or more conditions"),
    ({}, "expected a table with one or more conditions"),
    ({"a": {"gtee": 1}}, "sources.stripe.where.a.gtee is not an operator: did you mean gte?"),
    ({"a": {"Equals": 1}}, "did you mean equals?"),
    ({"a": {}}, "sources.stripe.where.a has no operator: the operators are equals, in, prefix"),
    ({"data": {"object": {"id": 1}}}, 'If this is a path, write it in quotes: "data.object.id"'),
    ({"data": {"object": {"id": {"gt": 1}}}}, 'write it in quotes: "data.object.id"'),
    ({"@tenat": "x"}, 'sources.stripe.where."@tenat" is not a fact of an event: did you mean @tenant?'),
    ({"@zzz": "x"}, "the facts are @type, @tenant, @object_id, @source"),
    ({"a..b": 1}, 'sources.stripe.where."a..b" is not a path'),
    ({"": 1}, "is not a path"),
    ({"a" * 501: 1}, "is not a path"),
    ({"header:x-y": 1}, "a filter reads the payload and the facts"),
    ({"a": [{"b": 1}]}, "A list of tables is written as any = [ … ]"),
    ({"any": []}, "sources.stripe.where.any can never match: no alternative is listed"),
    ({"all": []}, "sources.stripe.where.all is empty: it filters nothing"),
    ({"any": {"a": 1}}, "sources.stripe.where.any is {'a': 1}: expected a list of tables"),
    ({"all": [1]}, "expected a list of tables"),
    ({"any": [{"a": 1}, {}]}, "sources.stripe.where.any[1] is {}: expected a table"),
    ({"any": [{"a": {"like": "x%"}}]}, "sources.stripe.where.any[0].a.like is not an operator"),
]


@pytest.mark.parametrize(("table", "sentence"), WRONG)
def test_table_that_cannot_be_read_is_an_error_that_names_the_key(table: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_where(table, KEY)
    assert sentence in str(caught.value)


def test_deep_nesting_is_an_error() -> None:
    table: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH):
        table = {"any": [table]}
    assert compile_where(table, KEY).reason({"a": 1}, {}) is None
    with pytest.raises(ConfigurationError, match="nested deeper than 10 levels"):
        compile_where({"any": [table]}, KEY)


def test_condition_that_holds_for_every_event_may_contradict_the_filter() -> None:
    given_source = make_condition("@source", "equals", "stripe", "sources.stripe")
    compile_where({"@source": "stripe"}, KEY, given=[given_source])
    with pytest.raises(ConfigurationError, match='can never match: no @source is "stripe" and "github"'):
        compile_where({"@source": "github"}, KEY, given=[given_source])
