"""Filters: a table of conditions on the payload and the facts of an event, compiled once.

A filter never raises, whatever a payload contains. It returns the condition that left an event out, so that the receipt
can say why it is ignored. A path reads the payload as everywhere else (`look_up`): it may lead into a list by number,
and into a string that holds JSON. A `null` counts as absent.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.model.nearest import nearest
from oncehook.providers.conditions import OPERATORS, Condition, make_condition, shown
from oncehook.providers.contradictions import check
from oncehook.providers.expressions import look_up

Facts = Mapping[str, str | None]

FACTS = ("@type", "@tenant", "@object_id", "@source")
GROUPS = ("any", "all")

MAX_DEPTH = 10
"""How deep `any` and `all` may be nested."""

MAX_PATH = 500
MAX_REASON = 500

EXAMPLE = 'such as { "data.object.livemode" = true }'


class Where:
    """A compiled filter: all conditions must hold, and one of each group of alternatives."""

    __slots__ = ("_read", "alternatives", "conditions")

    def __init__(self, conditions: tuple[Condition, ...], alternatives: tuple[tuple["Where", ...], ...]) -> None:
        self.conditions = conditions
        self.alternatives = alternatives
        self._read = [
            (condition.path[1:] if condition.is_fact else None, condition.steps, condition) for condition in conditions
        ]

    def reason(self, payload: Any, facts: Facts) -> str | None:
        """Return the condition that leaves an event out, or None if the event matches. Never raises."""
        for fact, steps, condition in self._read:
            value = look_up(payload, steps) if fact is None else facts.get(fact) or None
            if not condition.holds(value):
                return f"{condition.path} is {shown(value)}, not {condition.expected}"[:MAX_REASON]
        for group in self.alternatives:
            reasons = []
            for alternative in group:
                reason = alternative.reason(payload, facts)
                if reason is None:
                    break
                reasons.append(reason)
            else:
                return f"no alternative holds: {'; '.join(reasons)}"[:MAX_REASON]
        return None


def compile_where(table: Any, where: str, *, given: Sequence[Condition] = ()) -> Where:
    """Compile a filter. `where` is its full name in the configuration, such as "sources.stripe.where".

    Raises ConfigurationError for a filter that cannot be read, and for one that no event can match. `given` are
    conditions that hold for every event that reaches the filter.
    """
    compiled = _compile_table(table, where, 0)
    _check(compiled, tuple(given))
    return compiled


def _check(where: Where, around: tuple[Condition, ...]) -> None:
    """Raise ConfigurationError if no event can match, or if no event can match an alternative."""
    conditions = (*around, *where.conditions)
    check(conditions)
    for group in where.alternatives:
        for alternative in group:
            _check(alternative, conditions)


def _compile_table(table: Any, key: str, depth: int) -> Where:
    if not isinstance(table, Mapping) or not table:
        raise ConfigurationError(f"{key} is {table!r}: expected a table with one or more conditions, {EXAMPLE}")
    if depth > MAX_DEPTH:
        raise ConfigurationError(f"{key} is nested deeper than {MAX_DEPTH} levels of any and all: use fewer levels")
    conditions: list[Condition] = []
    alternatives: list[tuple[Where, ...]] = []
    for path, value in table.items():
        if path in GROUPS:
            members = _members(value, f"{key}.{path}", depth + 1)
            if path == "any":
                alternatives.append(members)
                continue
            for member in members:
                conditions += member.conditions
                alternatives += member.alternatives
        else:
            conditions += _compile_path(path, value, f"{key}.{_quoted(path)}")
    return Where(tuple(conditions), tuple(alternatives))


def _members(value: Any, key: str, depth: int) -> tuple[Where, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(member, Mapping) for member in value):
        raise ConfigurationError(f"{key} is {value!r}: expected a list of tables, {EXAMPLE} in brackets")
    if not value:
        effect = "can never match: no alternative is listed" if key.endswith("any") else "is empty: it filters nothing"
        raise ConfigurationError(f"{key} {effect}. List one or more tables, or remove it")
    return tuple(_compile_table(member, f"{key}[{i}]", depth) for i, member in enumerate(value))


def _compile_path(path: Any, value: Any, key: str) -> list[Condition]:
    _check_path(path, key)
    if isinstance(value, list | tuple):
        return [make_condition(path, "in", value, key)]
    if not isinstance(value, Mapping):
        return [make_condition(path, "equals", value, key)]
    if not value:
        raise ConfigurationError(f"{key} has no operator: the operators are {', '.join(OPERATORS)}")
    for operator in value:
        if operator not in OPERATORS:
            raise ConfigurationError(
                f"{key}.{_quoted(operator)} is not an operator: {_operator_hint(path, value, operator)}"
            )
    return [make_condition(path, operator, operand, f"{key}.{operator}") for operator, operand in value.items()]


def _check_path(path: Any, key: str) -> None:
    if not isinstance(path, str) or not 0 < len(path) <= MAX_PATH or not all(path.split(".")):
        raise ConfigurationError(f'{key} is not a path: write the names of fields with dots, such as "data.object.id"')
    if path.startswith("@") and path not in FACTS:
        closest = nearest(path.lower(), FACTS)
        hint = f"did you mean {closest}?" if closest else f"the facts are {', '.join(FACTS)}"
        raise ConfigurationError(f"{key} is not a fact of an event: {hint}")
    if path.startswith(("header:", "token:", "literal:", "key:", "content:", "new:")):
        raise ConfigurationError(
            f"{key} is not a path in the payload: a filter reads the payload and the facts {', '.join(FACTS)}"
        )


def _operator_hint(path: str, value: Any, operator: Any) -> str:
    closest = nearest(str(operator).lower(), OPERATORS)
    if closest:
        return f"did you mean {closest}?"
    while isinstance(value, Mapping) and value and not any(name in OPERATORS for name in value):  # TOML: data.id = 5
        name, value = next(iter(value.items()))
        path = f"{path}.{name}"
    hint = f'the operators are {", ".join(OPERATORS)}. If this is a path, write it in quotes: "{path}"'
    return hint[:MAX_REASON]


def _quoted(name: Any) -> str:
    return name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(str(name))
