"""Puts signatures into JSON bodies, for the senders that carry them there."""

from typing import Any

from oncehook.providers.expressions import parse


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ValueError for any other body."""
    parsed = parse(body)
    if not isinstance(parsed, dict):
        raise ValueError("the signature goes into the body, so that must be a JSON object")
    return parsed


def set_at(inner: dict[str, Any], path: str, value: str) -> None:
    """Sets the value at a dotted path; missing objects on the way are created. Raises ValueError for other values."""
    *steps, last = path.split(".")
    for step in steps:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            raise ValueError(f"there is no place for a signature at {path}")
    inner[last] = value
