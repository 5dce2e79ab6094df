"""How a provider's payload is read: what is not there, or not what it should be, is absent. Nothing here fails."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from oncehook.email.event import MOST_METADATA, MOST_REASON, MOST_TAGS, EmailType, clean
from oncehook.providers.expressions import NotReadable, TooDeep, index_text, look_up, parse, parse_time

MOST_FIELDS = 1000

Words = Mapping[str, tuple[EmailType, str | None]]
"""A provider's word → what it means, and how bad a bounce it is."""


def at(payload: Any, path: str) -> Any:
    return look_up(payload, path.split("."))


def text(value: Any) -> str | None:
    """A value as a clean text, or None."""
    if isinstance(value, str):
        return clean(value) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def when(*values: Any) -> datetime | None:
    """The first of them that is a time."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        found = parse_time(value if isinstance(value, str) else repr(value))
        if found is not None:
            return found
    return None


def why(*values: Any) -> str | None:
    """The first of them that says something, cut to a sentence's length."""
    return next((found[:MOST_REASON] for value in values if (found := text(value))), None)


def tags(*values: Any) -> tuple[str, ...]:
    """Tags out of a text or a list of texts, each once, in their order."""
    given = [one for value in values for one in (value if isinstance(value, list) else [value])]
    found = dict.fromkeys(index_text(clean(one)) or "" for one in given if isinstance(one, str) and one)
    return tuple(found)[:MOST_TAGS]


def read_list(value: Any) -> list[Any]:
    """A list that stands as JSON in a text."""
    found = inner(value)
    return found if isinstance(found, list) else []


def metadata(value: Any) -> dict[str, Any]:
    """What the user gave along with the message: plain values by name. More than can be kept is left to the payload."""
    value = inner(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return {}
    kept = {clean(name): _plain(one) for name, one in value.items() if not isinstance(one, dict | list)}
    return kept if sum(len(name) + len(str(one)) for name, one in kept.items()) <= MOST_METADATA else {}


def form_fields(body: bytes) -> dict[str, Any]:
    """A form's fields; a repeated one is the list of its values."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return {}
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def inner(value: Any) -> Any:
    """What stands as JSON in a text, or None."""
    try:
        return parse(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    except (NotReadable, TooDeep):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return value if value is None or isinstance(value, bool | float) or abs(value) < 2**63 else str(value)


def headers(holder: dict[str, Any], name: str) -> list[str]:
    """The values of a mail's header, out of a list of names and values."""
    given = holder.get("headers")
    return [
        one["value"]
        for one in (given if isinstance(given, list) else [])
        if isinstance(one, dict) and str(one.get("name")).lower() == name and isinstance(one.get("value"), str)
    ]
