"""Exactly one handler an event, found at start-up to be reachable and alone."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook import ConfigurationError, Retry
from oncehook.handlers.registry import Handler, Handlers
from oncehook.model.patterns import overlap


def first(event: object) -> None: ...


def second(event: object, tx: object) -> None: ...


def make(*patterns: str, source: str = "stripe") -> Handlers:
    handlers = Handlers()
    for pattern in patterns:
        handlers.add(Handler(source=source, pattern=pattern, function=first, retry=Retry(), timeout=1.0))
    return handlers


def chosen(handlers: Handlers, type_: str, source: str = "stripe") -> str | None:
    handler = handlers.find(source, type_)
    return handler.pattern if handler else None


def test_the_most_specific_pattern_wins() -> None:
    handlers = make("*", "invoice.*", "invoice.paid", "invoice.p*")
    assert chosen(handlers, "invoice.paid") == "invoice.paid"
    assert chosen(handlers, "invoice.paused") == "invoice.p*"
    assert chosen(handlers, "invoice.voided") == "invoice.*"
    assert chosen(handlers, "charge.refunded") == "*"


def test_a_pattern_also_matches_as_a_dotted_prefix() -> None:
    handlers = make("pull_request")
    assert chosen(handlers, "pull_request.opened") == "pull_request"
    assert chosen(handlers, "pull_request_review") is None


def test_a_type_with_brackets_is_matched_by_itself() -> None:
    handlers = Handlers()
    handlers.add(
        Handler(
            source="stripe", pattern="v2.core.account[requirements].updated", function=first, retry=Retry(), timeout=1.0
        )
    )
    assert handlers.find("stripe", "v2.core.account[requirements].updated") is not None
    assert handlers.find("stripe", "v2.core.accountr.updated") is None


def test_an_event_without_a_handler_has_none() -> None:
    assert chosen(make("invoice.paid"), "charge.refunded") is None
    assert chosen(make("*"), "push", source="github") is None


@pytest.mark.parametrize(("one", "other"), [("invoice.paid", "invoice.paid"), ("*a", "a*"), ("?b", "a?")])
def test_two_that_tie_are_refused_at_start_up(one: str, other: str) -> None:
    with pytest.raises(ConfigurationError, match="tie for stripe"):
        make(one, other)


def test_equally_specific_ones_that_never_meet_live_together() -> None:
    handlers = make("a*x", "b*x")
    assert chosen(handlers, "a1x") == "a*x"


def test_a_handler_for_a_source_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'strpe', which does not exist: the sources are stripe"):
        make("*", source="strpe").check({"stripe": None})


def test_a_handler_that_the_allow_list_never_reaches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.types never accepts"):
        make("charge.*").check({"stripe": ["invoice.*"]})
    make("invoice.paid").check({"stripe": ["invoice.*"]})


def test_a_handler_takes_the_event_and_perhaps_the_transaction() -> None:
    def none() -> None: ...

    with pytest.raises(ConfigurationError, match="must take"):
        Handler(source="stripe", pattern="*", function=none, retry=Retry(), timeout=1.0)
    assert not Handler(source="stripe", pattern="*", function=first, retry=Retry(), timeout=1.0).takes_tx
    assert Handler(source="stripe", pattern="*", function=second, retry=Retry(), timeout=1.0).takes_tx


patterns = st.text("ab.*?", min_size=1, max_size=6)
texts = st.text("ab.", max_size=8)


@given(patterns, patterns, texts)
def test_patterns_that_match_one_type_overlap(one: str, other: str, type_: str) -> None:
    def matches(pattern: str) -> bool:
        return fnmatchcase(type_, pattern) or fnmatchcase(type_, pattern + ".*")

    if matches(one) and matches(other):
        assert overlap(one, other)
