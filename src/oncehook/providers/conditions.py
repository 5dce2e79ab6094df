"""The conditions of a filter: one operator on one path, compiled into a function that never raises.

Numbers are compared with numbers, also with numbers that are written as text, such as "19.99". Text is compared with
text. Equality converts nothing: 1 is 1.0, but neither `true` nor "1".
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.model.patterns import compile_pattern
from oncehook.providers.expressions import is_storable

Scalar = str | int | float | bool
Holds = Callable[[Any], bool]

OPERATORS = ("equals", "in", "prefix", "exists", "gt", "gte", "lt", "lte")

MAX_SHOWN = 60
"""The most characters of a text in a reason."""

MAX_LISTED = 10
"""The most values of a list in a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One operator on one path. `key` is its full name in the configuration."""

    key: str
    path: str
    operator: str
    operand: Any
    holds: Holds
    expected: str

    @property
    def is_fact(self) -> bool:
        return self.path.startswith("@")

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))


def make_condition(path: str, operator: str, operand: Any, key: str) -> Condition:
    """Compile a condition. Raises ConfigurationError, which names `key`, for an operand that the operator rejects."""
    try:
        holds, expected = _COMPILERS[operator](operand)
    except ValueError as error:
        raise ConfigurationError(f"{key} is {operand!r}: {error}") from None
    return Condition(key=key, path=path, operator=operator, operand=operand, holds=holds, expected=expected)


def type_condition(types: Sequence[str], key: str) -> Condition:
    """The condition that `types` of a source or consumer is: events of other types do not reach its filter."""
    patterns = [compile_pattern(pattern) for pattern in types]

    def holds(value: Any) -> bool:
        return isinstance(value, str) and any(pattern.fullmatch(value) for pattern in patterns)

    return Condition(key=key, path="@type", operator="types", operand=types, holds=holds, expected=f"in {key}")


def _equals(operand: Any) -> tuple[Holds, str]:
    _check_scalar(operand)
    return _same(operand), shown(operand)


def _in(operand: Any) -> tuple[Holds, str]:
    if not isinstance(operand, list | tuple):
        raise ValueError('expected a list such as ["eur", "usd"]')
    if not operand:
        raise ValueError("an empty list can never match. List one or more values, or remove it")
    for value in operand:
        _check_scalar(value)
    texts = frozenset(value for value in operand if isinstance(value, str))
    others = [_same(value) for value in operand if not isinstance(value, str)]

    def holds(value: Any) -> bool:
        return value in texts if isinstance(value, str) else any(same(value) for same in others)

    listed = [shown(value) for value in operand[:MAX_LISTED]] + ["…"] * (len(operand) > MAX_LISTED)
    return holds, f"in [{', '.join(listed)}]"


def _prefix(operand: Any) -> tuple[Holds, str]:
    if not isinstance(operand, str) or not operand:
        raise ValueError('expected text, such as "eu-"')
    return (
        lambda value: isinstance(value, str) and value.startswith(operand),
        f"text that begins with {shown(operand)}",
    )


def _exists(operand: Any) -> tuple[Holds, str]:
    if not isinstance(operand, bool):
        raise ValueError("expected true or false")
    return (lambda value: (value is not None) is operand), "present" if operand else "absent"


def _comparison(compare: Callable[[Any, Any], bool], expected: str) -> Callable[[Any], tuple[Holds, str]]:
    """Return the compiler of an operator that compares numbers with numbers, and text with text."""

    def compile_operand(operand: Any) -> tuple[Holds, str]:
        if isinstance(operand, bool):
            raise ValueError("expected a number or text")
        _check_scalar(operand)
        described = expected.format(shown(operand))
        if isinstance(operand, str):
            return lambda value: isinstance(value, str) and compare(value, operand), described

        def holds(value: Any) -> bool:
            number = number_of(value)
            return number is not None and compare(number, operand)

        return holds, described

    return compile_operand


_COMPILERS: Mapping[str, Callable[[Any], tuple[Holds, str]]] = {
    "equals": _equals,
    "in": _in,
    "prefix": _prefix,
    "exists": _exists,
    "gt": _comparison(lambda a, b: bool(a > b), "above {}"),
    "gte": _comparison(lambda a, b: bool(a >= b), "{} or more"),
    "lt": _comparison(lambda a, b: bool(a < b), "below {}"),
    "lte": _comparison(lambda a, b: bool(a <= b), "{} or less"),
}


def _same(operand: Scalar) -> Holds:
    """Return a test for equality without conversion: 1 is 1.0, but neither `true` nor "1"."""
    if isinstance(operand, bool):
        return lambda value: value is operand
    kinds = (str,) if isinstance(operand, str) else (int, float)
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and value == operand


def _check_scalar(operand: Any) -> None:
    if operand is None:
        raise ValueError("expected text, a number, true or false. For a value that is absent, use { exists = false }")
    if isinstance(operand, Mapping):
        raise ValueError("expected text, a number, true or false. A list of tables is written as any = [ … ]")
    if not isinstance(operand, str | int | float):
        raise ValueError('expected text, a number, true or false. Write a time as text, such as "2026-01-31"')
    if isinstance(operand, float) and not math.isfinite(operand):
        raise ValueError("expected a finite number")


_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


def number_of(value: Any) -> int | float | None:
    """Return a number, also one that is written as text, such as "19.99". None for every other value."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if not match:
            return None
        return float(value) if match[1] or match[2] else int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def shown(value: Any) -> str:
    """Return a value as a reason shows it: JSON, shortened. Every database can store the text."""
    if value is None:
        return "absent"
    if isinstance(value, str):
        shortened = value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "…"
        return json.dumps(shortened, ensure_ascii=not is_storable(shortened))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 200 else "a long number"
    if isinstance(value, float):
        return repr(value)
    return "a list" if isinstance(value, list) else "an object"
