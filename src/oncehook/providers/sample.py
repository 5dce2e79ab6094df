"""Composes realistic, signed deliveries of any defined provider, for `oncehook send`, the demo and tests."""

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from string import Template
from typing import Any
from urllib.parse import urlencode

from oncehook.config.settings import SourceSettings
from oncehook.model.patterns import glob
from oncehook.providers.definition import Example, Expression, Provider
from oncehook.providers.expressions import iso_time, templates_of
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.sign import sign


@dataclass(frozen=True, slots=True)
class Sample:
    """One delivery, ready to be posted."""

    headers: dict[str, str]
    body: bytes


def compose(
    provider: Provider,
    type_: str,
    secret: str | None,
    *,
    now: float,
    settings: SourceSettings | None = None,
    edit: Callable[[Sample], Sample] = lambda draft: draft,
) -> Sample:
    """Compose a new event of this type as the provider would send it. `edit` changes it before it is signed.

    `settings` are those of the receiving source. Without a secret, the sample is not signed. Raises ValueError if the
    secret cannot sign it.
    """
    draft = edit(make_draft(provider, type_, now=now, settings=settings))
    if secret is None:
        return draft
    return Sample(*sign(provider, draft.body, secret, headers=draft.headers, now=now, settings=settings))


def make_draft(provider: Provider, type_: str, *, now: float, settings: SourceSettings | None = None) -> Sample:
    """Compose a new event of this type without a signature."""
    example = next((e for e in provider.examples if fnmatchcase(type_, glob(e.type))), None) or _minimal_example(
        provider
    )
    event, _, action = type_.partition(".")
    words = {
        "id": secrets.token_hex(12),
        "type": type_,
        "event": event,
        "action": action,
        "now": int(now),
        "now_ms": int(now * 1000),
        "now_iso": iso_time(now),
        "number": secrets.randbelow(900_000) + 100_000,
        **provider.signatures[0].family.sample_words(settings or SourceSettings()),
    }
    body = Template(example.body).safe_substitute(words).lstrip("\n").encode()
    headers = {"Content-Type": "application/json"}
    if example.form:
        headers = {"Content-Type": CONTENT_TYPE}
        body = urlencode(
            {name: Template(value).safe_substitute(words) for name, value in example.form.items()}
        ).encode()
    headers |= {name: Template(value).safe_substitute(words) for name, value in example.headers.items()}
    return Sample(headers, body)


def _minimal_example(provider: Provider) -> Example:
    """An example for a definition that has none: only the facts, where the definition expects them."""
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    facts = provider.event
    values = [(facts.type, "$type"), (facts.object, "obj_$number"), (facts.occurred_at, "$now_iso")]
    composed = len(locators(facts.id)) > 1  # other facts may be parts of a composed id, so they come first
    values.insert(len(values) if composed else 0, (facts.id, "$id"))
    for expression, value in values:
        parts = locators(expression or [])
        for i, locator in enumerate(parts):
            part = ("$action" if i else "$event") if value == "$type" and len(parts) > 1 else value
            _set_fact(locator, part, body, headers)
    if provider.timestamp and provider.timestamp.body:
        stamp = {"s": "$now", "ms": "$now_ms", "iso": "$now_iso"}[provider.timestamp.unit]
        _set_fact(provider.timestamp.body.split("|")[0], stamp, body, headers)
    return Example(body=json.dumps(_wrap(body, facts.split)), headers=headers)


def _wrap(body: dict[str, Any], path: str | None) -> Any:
    """The event inside the array that `split` names."""
    if path is None:
        return body
    wrapped: Any = [body]
    for step in () if path == "*" else reversed(path.split(".")):
        wrapped = {step: wrapped}
    return wrapped


def locators(expression: Expression) -> list[str]:
    """The locators of an expression's first template."""
    template = next(iter(templates_of(expression)), "literal:")
    return [choice.strip() for choice in re.findall(r"\{([^{}|]+)", template)] or [template.strip()]


def _set_fact(locator: str, value: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    if locator.startswith(("literal:", "content:", "new:", "key:")):
        return
    if locator.startswith("header:"):
        headers.setdefault(locator.removeprefix("header:").strip(), value)
        return
    *steps, last = locator.split(".")
    inner: Any = body
    for step in steps:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            return  # another fact already has this path
    inner.setdefault(last, value)


def sample_type(provider: Provider) -> str:
    """A type that the provider's examples cover."""
    types = [example.type for example in provider.examples]
    return next((type_ for type_ in types if "*" not in type_), types[0] if types else "*").replace("*", "created")


def url_for(source: str, base: str = "http://127.0.0.1:8000") -> str:
    """The address of a source of a local inbox."""
    return f"{base}/webhooks/{source}"
