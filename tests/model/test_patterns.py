"""Type patterns: matching in Python and in the notations of both databases, and overlap."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.patterns import overlap


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
