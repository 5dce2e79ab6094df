"""The sentence for a payload that does not fit: where, what was expected, and what was found.

It stands where the errors of attempts stand, so it shows one value at most, and of that only the beginning.
"""

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

MOST_VALUE = 40
"""Characters of a value that are shown."""

MOST_REASON = 200

MOST_PATH = 120
"""Characters of a path that are shown: its beginning and its end."""

_MESSAGE = re.compile(r"(.*?)(?: - at `([^`]*)`(?: in `([^`]*)`)?)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_JSON_NAMES = {dict: "object", list: "array", type(None): "null"}


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else inspect.formatannotation(hint)


def missing(hint: Any, steps: Sequence[Any]) -> str:
    return f"payload does not fit {type_name(hint)}: {_join(steps)} is missing"


def describe_mismatch(error: Exception, hint: Any, steps: Sequence[str], value: Any) -> str:
    """Describe why `value`, found at `steps`, cannot be decoded to `hint`."""
    match = _MESSAGE.fullmatch(str(error))
    assert match is not None  # everything is optional in it
    reason, inner = match[1], _steps(match[3] or match[2] or "")
    found = _descend(value, inner) if match[3] is None else ...  # of a key, msgspec does not say which
    validation = getattr(error.__cause__, "errors", None)
    if validation is not None:  # pydantic's, of which msgspec has only the text
        first = validation(include_url=False, include_context=False)[0]
        inner, found, reason = [*inner, *first["loc"]], first["input"], first["msg"]
        if first["type"] == "missing":
            return missing(hint, [*steps, *inner])
    lacking = _MISSING.fullmatch(reason)
    if lacking is not None:
        return missing(hint, [*steps, *inner, lacking[1]])
    path = _join([*steps, *inner])
    return f"payload does not fit {type_name(hint)}{path and f' at {path}'}: {_explain(reason, found)}"


def _steps(path: str) -> list[str]:
    """The keys and positions of a path such as `$.lines[0].amount`; `*` is a key that msgspec does not name."""
    return [(key or position).replace("...", "*") for key, position in _STEP.findall(path)]


def _join(steps: Sequence[Any]) -> str:
    path = _printable(".".join(map(str, steps)))
    half = MOST_PATH // 2
    return path if len(path) <= MOST_PATH else f"{path[:half]}…{path[-half:]}"


def _descend(value: Any, steps: Sequence[str]) -> Any:
    """Return the value at a path, or Ellipsis where the path does not lead to one."""
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return ...
    return value


def _explain(reason: str, found: Any) -> str:
    if reason.startswith("Invalid enum value"):
        reason = "Invalid enum value"  # the rest is the value
    reason = _printable(re.sub(r", got `.*`$", "", reason).replace("`", "")[:MOST_REASON])
    reason = reason[:1].lower() + reason[1:]
    return reason if found is ... else f"{reason}, found {_show(found)}"


def _show(value: Any) -> str:
    name = _JSON_NAMES.get(type(value), type(value).__name__)
    if not isinstance(value, (str, int, float)):
        return name
    text = json.dumps(value[:MOST_VALUE] if isinstance(value, str) else value, ensure_ascii=False)
    return f"{name} {_printable(text if len(text) <= MOST_VALUE else text[:MOST_VALUE] + '…')}"


def _printable(text: str) -> str:
    """Escape what a database or a terminal may not take: a sender chooses values and the names of unknown fields."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
