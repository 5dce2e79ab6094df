"""A delivery before it is signed, changed: another payload, another id, other fields."""

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
    """The draft with this id where the source finds it: at `natural`, or where the provider has it."""
    where = locators(list(natural) if natural else provider.event.id)
    if len(where) != 1 or where[0].startswith(("literal:", "content:", "new:", "key:")):
        raise ValueError(f"{provider.name} composes its ids of several facts: write those into the payload")
    if where[0].startswith("header:"):
        return Sample(merge_headers(draft.headers, {where[0].removeprefix("header:").strip(): id}), draft.body)
    try:
        parsed = inner = _decoded(provider, draft)
        for step in [*_path_to_event(split), *where[0].split(".")[:-1]]:
            inner = inner[step]
        inner[where[0].rpartition(".")[2]] = id
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ValueError(f"there is no place for an id at {where[0]!r}: write it into the payload") from None
    return Sample(draft.headers, encode_payload(provider, draft.headers, parsed))


def with_field(provider: Provider, draft: Sample, path: str, value: Any, *, split: str | None) -> Sample:
    """The draft with this value at a dotted path of its event; what is missing on the way is made."""
    try:
        parsed = inner = _decoded(provider, draft)
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
        raise ValueError(f"there is no place for {path!r} in the payload") from None
    return Sample(draft.headers, encode_payload(provider, draft.headers, parsed))


def encode_payload(provider: Provider, headers: Mapping[str, str], payload: Any) -> bytes:
    """Plain data as this provider sends it: JSON, a form, or JSON in a field of a form."""
    if provider.form_holds == "xml":
        raise ValueError(f"the events of {provider.name} are XML: give the exact bytes as the payload")
    if not _is_form(headers):
        return msgspec.json.encode(payload)
    if provider.form_field is not None:
        payload = {provider.form_field: msgspec.json.encode(payload).decode()}
    return urlencode(payload).encode()


def merge_headers(headers: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """Headers, with those of `over` in place of the same names."""
    given = {name.lower() for name in over}
    return {**{name: value for name, value in headers.items() if name.lower() not in given}, **over}


def _decoded(provider: Provider, draft: Sample) -> Any:
    """The plain data of a draft. Raises LookupError where it is something else."""
    if not _is_form(draft.headers):
        return msgspec.json.decode(draft.body)
    form = dict(parse_qsl(draft.body.decode(), keep_blank_values=True))
    if provider.form_field is None:
        return form
    return msgspec.json.decode(form[provider.form_field])


def _is_form(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "content-type" and text.startswith(CONTENT_TYPE) for name, text in headers.items())


def _path_to_event(split: str | None) -> list[Any]:
    """The steps to the first event of a body."""
    if split is None:
        return []
    return [*(() if split == "*" else split.split(".")), 0]
