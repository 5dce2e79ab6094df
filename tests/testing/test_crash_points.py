"""The crash points: their names, and that the functions and queries where they are exist."""

import importlib
from typing import Any

import pytest

from oncehook.store import queries
from oncehook.testing.crash_points import CRASH_POINTS, Call, Statement, find

GROUPS = {
    "R": range(18),
    "W": range(20),
    "S": range(1, 4),
    "P": range(1, 4),
    "O": range(1, 6),
    "D": range(1, 4),
    "M": range(1, 4),
}


def test_every_moment_of_an_event_has_a_point() -> None:
    expected = [f"{letter}{number}" for letter, numbers in GROUPS.items() for number in numbers]
    assert [point.name for point in CRASH_POINTS] == expected and len(expected) == 55
    assert find("W13").part == "work"


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_function_or_query_of_every_point_exists(dialect: str) -> None:
    for point in CRASH_POINTS:
        where = point.where(dialect)
        if isinstance(where, Statement):
            names = {where.query, where.follows} - {None, "COMMIT"}
            assert names <= queries.load(dialect).keys(), point.name
        elif isinstance(where, Call):
            module, _, path = where.path.partition(":")
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            assert callable(found), point.name
