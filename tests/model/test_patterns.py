"""Type patterns: matching in Python and in the notations of both databases, and overlap."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.patterns import compile_pattern, overlap


def first(event: object) -> None: ...


def second(event: object, tx: object) -> None: ...


patterns = st.text("ab.*?", min_size=1, max_size=6)
texts = st.text("ab.", max_size=8)


@given(patterns, patterns, texts)
def test_patterns_that_match_the_same_type_overlap(first: str, second: str, type_: str) -> None:
    def matches(pattern: str) -> bool:
        return fnmatchcase(type_, pattern) or fnmatchcase(type_, pattern + ".*")

    if matches(first) and matches(second):
        assert overlap(first, second)


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("push", ["push", "push.forced"], ["pushed", "pus", "xpush", "PUSH"]),
        ("invoice.*", ["invoice.paid", "invoice.a.b"], ["invoice", "invoices.paid"]),
        ("*.paid", ["invoice.paid", "invoice.paid.late"], ["paid", "invoice.unpaid"]),
        ("orders/*", ["orders/create"], ["orders"]),
        ("a[bc]?", ["a[bc]x", "a[bc]y.z"], ["abx", "a[bc]"]),
        ("v2.account[requirements].updated", ["v2.account[requirements].updated"], ["v2.accountr.updated"]),
        ("a]b[!c", ["a]b[!c"], ["a]bx"]),
        ("a\\*", ["a\\b"], ["a*"]),
        ("*", ["", "anything\nat all"], []),
    ],
)
def test_pattern_matches_like_a_shell_pattern_and_as_a_dotted_prefix(
    pattern: str, taken: list[str], left: list[str]
) -> None:
    assert all(compile_pattern(pattern).fullmatch(type_) for type_ in taken)
    assert not any(compile_pattern(pattern).fullmatch(type_) for type_ in left)
