"""Finds filters that no event can match, so that they are errors at start instead of events that are all ignored.

The check is sound but not complete: it never reports a filter that some event matches. It compares the conditions on
one path, and the conditions on a path with those on the paths below it.
"""

from collections.abc import Sequence
from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.providers.conditions import Condition, number_of
from oncehook.providers.expressions import look_up

ALWAYS_PRESENT = ("@type", "@source")
BOUNDS = ("gt", "gte", "lt", "lte")


def check(conditions: Sequence[Condition]) -> None:
    """Raise ConfigurationError if no event satisfies all conditions."""
    by_path: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_path.setdefault(condition.path, []).append(condition)
    for path, of_path in by_path.items():
        if path.startswith("@"):
            _check_fact(path, of_path)
        _check_path(of_path)
    for path, of_path in by_path.items():
        for parent in _parents(path):
            if parent in by_path:
                _check_below(by_path[parent], of_path)


def _never(conditions: Sequence[Condition]) -> ConfigurationError:
    last = conditions[-1]
    expected = " and ".join(dict.fromkeys(condition.expected for condition in conditions))
    return ConfigurationError(
        f"{last.key} can never match: no {last.path} is {expected}. Change one of these conditions"
    )


# -- one path -------------------------------------------------------------------------------------------------------


def _check_fact(path: str, conditions: Sequence[Condition]) -> None:
    for condition in conditions:
        if path in ALWAYS_PRESENT and condition.operator == "exists" and not condition.operand:
            raise ConfigurationError(f"{condition.key} can never match: every event has {path}")
        if condition.operator in ("equals", "in") and not any(isinstance(v, str) for v in _values(condition)):
            raise ConfigurationError(f"{condition.key} can never match: {path} is text, not {condition.expected}")


def _check_path(conditions: Sequence[Condition]) -> None:
    if _is_absent(conditions) and _is_present(conditions):
        raise _never(conditions)
    candidates = _candidates(conditions)
    if candidates is not None:
        if not candidates:
            raise _never(conditions)
        return
    bounds = [condition for condition in conditions if condition.operator in BOUNDS]
    if len({isinstance(bound.operand, str) for bound in bounds}) > 1:
        raise ConfigurationError(f"{bounds[-1].key} is {bounds[-1].operand!r}: compare with numbers or text, not both")
    prefixes = sorted((condition.operand for condition in conditions if condition.operator == "prefix"), key=len)
    if any(not prefixes[-1].startswith(prefix) for prefix in prefixes):
        raise _never(conditions)
    if _is_empty_range(bounds) or (prefixes and not _prefix_fits(prefixes[-1], bounds)):
        raise _never(conditions)


def _values(condition: Condition) -> Sequence[Any]:
    return condition.operand if condition.operator == "in" else (condition.operand,)


def _candidates(conditions: Sequence[Condition]) -> list[Any] | None:
    """Return the values that satisfy every condition, if there are finitely many, or None."""
    finite = next((condition for condition in conditions if condition.operator in ("equals", "in")), None)
    if finite is None:
        return None
    return [value for value in _values(finite) if all(condition.holds(value) for condition in conditions)]


def _is_absent(conditions: Sequence[Condition]) -> bool:
    return any(condition.operator == "exists" and not condition.operand for condition in conditions)


def _is_present(conditions: Sequence[Condition]) -> bool:
    return any(condition.operator != "exists" or condition.operand for condition in conditions)


def _is_empty_range(bounds: Sequence[Condition]) -> bool:
    for low in (bound for bound in bounds if bound.operator.startswith("gt")):
        for high in (bound for bound in bounds if bound.operator.startswith("lt")):
            is_strict = low.operator == "gt" or high.operator == "lt"
            if low.operand > high.operand or (is_strict and low.operand == high.operand):
                return True
    return False


def _prefix_fits(prefix: str, bounds: Sequence[Condition]) -> bool:
    """Return whether some text that begins with `prefix` may satisfy the bounds."""
    for bound in bounds:
        if not isinstance(bound.operand, str):
            # A number that is written as text may begin with this prefix, such as "-1." or "2e".
            if not any(number_of(prefix + rest) is not None for rest in ("", "0", "1")):
                return False
        elif bound.operator.startswith("lt"):
            if not bound.holds(prefix):
                return False
        elif not (prefix > bound.operand or bound.operand.startswith(prefix)):
            return False
    return True


# -- a path and the paths below it ----------------------------------------------------------------------------------


def _parents(path: str) -> list[str]:
    """Return the paths above a path: `a` and `a.b` for `a.b.c`."""
    steps = [] if path.startswith("@") else path.split(".")
    return [".".join(steps[:length]) for length in range(1, len(steps))]


def _check_below(above: Sequence[Condition], below: Sequence[Condition]) -> None:
    """Raise if the conditions on a path exclude the values that the conditions below it need."""
    if not _is_present(below):
        return
    steps = below[0].steps[len(above[0].steps) :]
    candidates = _candidates(above)
    is_number = any(c.operator in BOUNDS and not isinstance(c.operand, str) for c in above)
    has_no_fields = candidates is not None and all(look_up(value, steps) is None for value in candidates)
    if _is_absent(above) or is_number or has_no_fields:
        expected = " and ".join(condition.expected for condition in above)
        raise ConfigurationError(
            f"{below[-1].key} can never match: {above[0].path} must be {expected}, which has no {'.'.join(steps)}"
        )
