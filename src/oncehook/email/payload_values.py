"""Reads values of a provider's payload. A missing or malformed value is None or empty; no function raises."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from oncehook.email.event import MAX_METADATA_LENGTH, MAX_REASON_LENGTH, MAX_TAGS, EmailType, clean
from oncehook.providers.expressions import NotReadable, TooDeep, index_text, look_up, parse, parse_time

MAX_FIELDS = 1000

Vocabulary = Mapping[str, tuple[EmailType, str | None]]
"""A provider's event name → its type and bounce."""


def value_at(payload: Any, path: str) -> Any:
    return look_up(payload, path.split("."))


def as_text(value: Any) -> str | None:
    """Return a string or number as clean text, or None."""
    if isinstance(value, str):
        return clean(value) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def first_time(*values: Any) -> datetime | None:
    """Return the first value that is a time."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        time = parse_time(value if isinstance(value, str) else repr(value))
        if time is not None:
            return time
    return None


def first_text(*values: Any) -> str | None:
    """Return the first text that is not empty, cut to `MAX_REASON_LENGTH` characters."""
    return next((text[:MAX_REASON_LENGTH] for value in values if (text := as_text(value))), None)


def read_tags(*values: Any) -> tuple[str, ...]:
    """Return the distinct tags of strings and lists of strings, in order."""
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    tags = dict.fromkeys(index_text(clean(item)) or "" for item in items if isinstance(item, str) and item)
    return tuple(tags)[:MAX_TAGS]


def parse_json_list(value: Any) -> list[Any]:
    """Parse a JSON list in a string."""
    parsed = parse_json_text(value)
    return parsed if isinstance(parsed, list) else []


def read_metadata(value: Any) -> dict[str, Any]:
    """Return the plain values of the message's metadata, or nothing if they are too large to store."""
    value = parse_json_text(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return {}
    plain = {clean(name): _plain(item) for name, item in value.items() if not isinstance(item, dict | list)}
    return plain if sum(len(name) + len(str(item)) for name, item in plain.items()) <= MAX_METADATA_LENGTH else {}


def form_fields(body: bytes) -> dict[str, Any]:
    """Parse the fields of a form. A repeated field is a list."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def parse_json_text(value: Any) -> Any:
    """Parse JSON in a string, or return None."""
    try:
        return parse(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    except (NotReadable, TooDeep):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return value if value is None or isinstance(value, bool | float) or abs(value) < 2**63 else str(value)


def header_values(holder: dict[str, Any], name: str) -> list[str]:
    """Return the values of a header from a list of names and values."""
    headers = holder.get("headers")
    return [
        item["value"]
        for item in (headers if isinstance(headers, list) else [])
        if isinstance(item, dict) and str(item.get("name")).lower() == name and isinstance(item.get("value"), str)
    ]
