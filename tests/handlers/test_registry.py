"""The registry of handlers: exactly one handler per event, checked at start-up."""

import pytest
from hypothesis import strategies as st

from oncehook import ConfigurationError, Retry
from oncehook.handlers.registry import Handler, Handlers


def first(event: object) -> None: ...


def second(event: object, tx: object) -> None: ...


def make_handlers(*patterns: str, source: str = "stripe") -> Handlers:
    handlers = Handlers()
    for pattern in patterns:
        handlers.add(Handler(source=source, pattern=pattern, function=first, retry=Retry(), timeout=1.0))
    return handlers


def chosen_pattern(handlers: Handlers, type_: str, source: str = "stripe") -> str | None:
    handler = handlers.find(source, type_)
    return handler.pattern if handler else None


def test_most_specific_pattern_wins() -> None:
    handlers = make_handlers("*", "invoice.*", "invoice.paid", "invoice.p*")
    assert chosen_pattern(handlers, "invoice.paid") == "invoice.paid"
    assert chosen_pattern(handlers, "invoice.paused") == "invoice.p*"
    assert chosen_pattern(handlers, "invoice.voided") == "invoice.*"
    assert chosen_pattern(handlers, "charge.refunded") == "*"


def test_pattern_also_matches_as_a_dotted_prefix() -> None:
    handlers = make_handlers("pull_request")
    assert chosen_pattern(handlers, "pull_request.opened") == "pull_request"
    assert chosen_pattern(handlers, "pull_request_review") is None


def test_type_with_brackets_matches_itself() -> None:
    handlers = Handlers()
    handlers.add(
        Handler(
            source="stripe", pattern="v2.core.account[requirements].updated", function=first, retry=Retry(), timeout=1.0
        )
    )
    assert handlers.find("stripe", "v2.core.account[requirements].updated") is not None
    assert handlers.find("stripe", "v2.core.accountr.updated") is None


def test_pattern_that_is_the_type_itself_wins_even_if_the_type_contains_a_wildcard() -> None:
    handlers = make_handlers("x", "x.a?b", "*")
    assert chosen_pattern(handlers, "x.a?b") == "x.a?b"
    assert chosen_pattern(handlers, "x.acb") == "x", "a pattern without wildcards is more specific"


def test_event_without_a_matching_pattern_has_no_handler() -> None:
    assert chosen_pattern(make_handlers("invoice.paid"), "charge.refunded") is None
    assert chosen_pattern(make_handlers("*"), "push", source="github") is None


@pytest.mark.parametrize(
    ("first_pattern", "second_pattern"), [("invoice.paid", "invoice.paid"), ("*a", "a*"), ("?b", "a?")]
)
def test_two_equally_specific_patterns_that_overlap_are_an_error(first_pattern: str, second_pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="tie for stripe"):
        make_handlers(first_pattern, second_pattern)


def test_equally_specific_patterns_that_do_not_overlap_are_allowed() -> None:
    handlers = make_handlers("a*x", "b*x")
    assert chosen_pattern(handlers, "a1x") == "a*x"


def test_handler_of_an_unknown_source_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="'strpe', which does not exist: the sources are stripe"):
        make_handlers("*", source="strpe").check({"stripe": None})


def test_handler_that_the_allow_list_never_reaches_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.types never accepts"):
        make_handlers("charge.*").check({"stripe": ["invoice.*"]})
    make_handlers("invoice.paid").check({"stripe": ["invoice.*"]})


def test_handler_takes_the_event_and_optionally_the_transaction() -> None:
    def none() -> None: ...

    with pytest.raises(ConfigurationError, match="must take"):
        Handler(source="stripe", pattern="*", function=none, retry=Retry(), timeout=1.0)
    assert not Handler(source="stripe", pattern="*", function=first, retry=Retry(), timeout=1.0).takes_tx
    assert Handler(source="stripe", pattern="*", function=second, retry=Retry(), timeout=1.0).takes_tx


patterns = st.text("ab.*?", min_size=1, max_size=6)
