"""Error messages for payloads that do not fit a type: the path, the expected type and the actual value.

The message is stored as the error of an attempt, so it shows at most one value, and only the beginning of it.
"""

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

MAX_VALUE_LENGTH = 40
"""How many characters of a value are shown."""

MAX_REASON_LENGTH = 200

MAX_PATH_LENGTH = 120
"""How many characters of a path are shown: its beginning and its end."""

_MESSAGE = re.compile(r"(.*?)(?: - at `([^`]*)`(?: in `([^`]*)`)?)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_JSON_NAMES = {dict: "object", list: "array", type(None): "null"}


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else inspect.formatannotation(hint)


def missing(hint: Any, steps: Sequence[Any]) -> str:
    return f"payload does not fit {type_name(hint)}: {_join(steps)} is missing"


def describe_mismatch(error: Exception, hint: Any, steps: Sequence[str], value: Any) -> str:
    """Return the message for a `value` at the path `steps` that cannot be decoded to `hint`."""
    match = _MESSAGE.fullmatch(str(error))
    assert match is not None  # every part of the expression is optional
    reason, inner = match[1], _steps(match[3] or match[2] or "")
    actual = _descend(value, inner) if match[3] is None else ...  # msgspec does not say which key is wrong
    validation = getattr(error.__cause__, "errors", None)
    if validation is not None:  # pydantic's error, of which msgspec has only the text
        first = validation(include_url=False, include_context=False)[0]
        inner, actual, reason = [*inner, *first["loc"]], first["input"], first["msg"]
        if first["type"] == "missing":
            return missing(hint, [*steps, *inner])
    lacking = _MISSING.fullmatch(reason)
    if lacking is not None:
        return missing(hint, [*steps, *inner, lacking[1]])
    path = _join([*steps, *inner])
    return f"payload does not fit {type_name(hint)}{path and f' at {path}'}: {_explain(reason, actual)}"


def _steps(path: str) -> list[str]:
    """Return the keys and indexes of a path such as `$.lines[0].amount`. `*` stands for a key that is not named."""
    return [(key or position).replace("...", "*") for key, position in _STEP.findall(path)]


def _join(steps: Sequence[Any]) -> str:
    path = _printable(".".join(map(str, steps)))
    half = MAX_PATH_LENGTH // 2
    return path if len(path) <= MAX_PATH_LENGTH else f"{path[:half]}…{path[-half:]}"


def _descend(value: Any, steps: Sequence[str]) -> Any:
    """Return the value at a path, or Ellipsis if there is none."""
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return ...
    return value


def _explain(reason: str, actual: Any) -> str:
    if reason.startswith("Invalid enum value"):
        reason = "Invalid enum value"  # the rest is the value
    reason = _printable(re.sub(r", got `.*`$", "", reason).replace("`", "")[:MAX_REASON_LENGTH])
    reason = reason[:1].lower() + reason[1:]
    return reason if actual is ... else f"{reason}, found {_show(actual)}"


def _show(value: Any) -> str:
    name = _JSON_NAMES.get(type(value), type(value).__name__)
    if not isinstance(value, (str, int, float)):
        return name
    text = json.dumps(value[:MAX_VALUE_LENGTH] if isinstance(value, str) else value, ensure_ascii=False)
    return f"{name} {_printable(text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + '…')}"


def _printable(text: str) -> str:
    """Escape characters that a database or terminal may not accept: senders choose values and field names."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
