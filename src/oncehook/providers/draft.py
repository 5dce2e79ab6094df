"""Edits an unsigned sample delivery: sets its id, a field or headers, and encodes another payload."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from oncehook.providers.definition import Provider
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.sample import Sample, locators


def with_id(
    provider: Provider, draft: Sample, id: str, *, split: str | None, natural: Sequence[str] | None = None
) -> Sample:
    """Set the event id of a draft: at `natural` (the source's `id`), or where the provider's definition has it."""
    where = locators(list(natural) if natural else provider.event.id)
    if len(where) != 1 or where[0].startswith(("literal:", "content:", "new:", "key:")):
        raise ValueError(f"the ids of {provider.name} are composed of several facts: set those in the payload")
    if where[0].startswith("header:"):
        return Sample(merge_headers(draft.headers, {where[0].removeprefix("header:").strip(): id}), draft.body)
    try:
        parsed = inner = _decode_payload(provider, draft)
        for step in [*_path_to_event(split), *where[0].split(".")[:-1]]:
            inner = inner[step]
        inner[where[0].rpartition(".")[2]] = id
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ValueError(f"the payload has no object at {where[0]!r} for the id: set it in the payload") from None
    return Sample(draft.headers, encode_payload(provider, draft.headers, parsed))


def with_field(provider: Provider, draft: Sample, path: str, value: Any, *, split: str | None) -> Sample:
    """Set a value at a dotted path of a draft's event. Missing objects on the path are created."""
    try:
        parsed = inner = _decode_payload(provider, draft)
    except (msgspec.DecodeError, LookupError, UnicodeDecodeError):
        form = "a form" if _is_form(draft.headers) else "JSON"
        raise ValueError(f"{path!r} cannot be set: the payload is not {form}") from None
    try:
        for step in _path_to_event(split):
            inner = inner[step]
        *steps, last = path.split(".")
        for step in steps:
            inner = inner[int(step)] if isinstance(inner, list) else inner.setdefault(step, {})
        inner[int(last) if isinstance(inner, list) else last] = value
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{path!r} cannot be set: the payload has another kind of value on that path") from None
    return Sample(draft.headers, encode_payload(provider, draft.headers, parsed))


def encode_payload(provider: Provider, headers: Mapping[str, str], payload: Any) -> bytes:
    """Encode plain data as this provider sends it: JSON, a form, or JSON in a form field."""
    if provider.form_holds == "xml":
        raise ValueError(f"the events of {provider.name} are XML: pass the exact bytes as the payload")
    if not _is_form(headers):
        return msgspec.json.encode(payload)
    if provider.form_field is not None:
        payload = {provider.form_field: msgspec.json.encode(payload).decode()}
    return urlencode(payload).encode()


def merge_headers(headers: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """The headers, with those of `over` replacing headers of the same name."""
    replaced = {name.lower() for name in over}
    return {**{name: value for name, value in headers.items() if name.lower() not in replaced}, **over}


def _decode_payload(provider: Provider, draft: Sample) -> Any:
    """The payload of a draft as plain data. Raises LookupError if a form lacks the field that holds it."""
    if not _is_form(draft.headers):
        return msgspec.json.decode(draft.body)
    form = dict(parse_qsl(draft.body.decode(), keep_blank_values=True))
    if provider.form_field is None:
        return form
    return msgspec.json.decode(form[provider.form_field])


def _is_form(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "content-type" and text.startswith(CONTENT_TYPE) for name, text in headers.items())


def _path_to_event(split: str | None) -> list[Any]:
    """The steps from the body to its first event."""
    if split is None:
        return []
    return [*(() if split == "*" else split.split(".")), 0]
