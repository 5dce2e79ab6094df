"""Puts signatures into JSON bodies, for the senders that carry them there."""

from typing import Any

from oncehook.providers.expressions import parse


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ValueError for any other body."""
    parsed = parse(body)
    if not isinstance(parsed, dict):
        raise ValueError("the body must be a JSON object, because it carries the signature")
    return parsed


def set_at(inner: dict[str, Any], path: str, value: str) -> None:
    """Set a value at a dotted path. Creates missing objects; raises ValueError if another value is in the way."""
    *steps, last = path.split(".")
    for step in steps:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            raise ValueError(f"the signature cannot be set at {path}: the body has another kind of value on that path")
    inner[last] = value
