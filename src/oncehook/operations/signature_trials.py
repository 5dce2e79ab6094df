"""Variations of a rejected request, and whether its signature is valid with them. The doctor tries them in turn.

A variation changes one part: the secret, the body, the provider's definition or the address. Each describes its change
in a sentence that holds no secret and no address.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import msgspec

from oncehook.config.secret import resolve
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.providers.definition import Provider
from oncehook.providers.family import Match
from oncehook.providers.forwarded_address import USUAL_PORTS, split_url
from oncehook.providers.source import Source
from oncehook.providers.template import Body
from oncehook.providers.verify import Verifier


@dataclass(frozen=True, slots=True)
class Variation:
    """One changed part of a sample, and the cause that it would show. An unchanged part has no cause."""

    cause: str
    value: Any
    shows: str = ""


def combinations(
    source: Source, others: Sequence[Source], secrets: Sequence[str], delivery: Delivery
) -> Iterator[tuple[Variation, ...]]:
    """Yield combinations of variations with at most two changes, those with the fewest changes first."""
    alternatives = (
        list(_secret_variations(source, others, secrets)),
        list(_body_variations(delivery.body)),
        list(_definition_variations(source.provider)),
        list(_address_variations(source, delivery)),
    )
    counted = [(sum(1 for each in variations if each.cause), variations) for variations in product(*alternatives)]
    few = [(count, variations) for count, variations in counted if count <= 2]
    for _, variations in sorted(few, key=lambda pair: pair[0]):
        yield variations


def is_signature_valid(source: Source, delivery: Delivery, variations: tuple[Variation, ...]) -> bool:
    secret, body, definition, (public_url, query) = (variation.value for variation in variations)
    try:
        verifier = source.make_verifier(definition, [secret], where="doctor", public_url=public_url)
    except ConfigurationError:
        return False  # the secret cannot be decoded in this form
    changed = Delivery(body, delivery.headers.items(), method=delivery.method, query=query)
    return find_match(verifier, changed) is not None


def find_match(verifier: Verifier, delivery: Delivery) -> Match | None:
    body = Body(delivery, verifier.provider.sends_form)
    for check in verifier.checks:
        try:
            match = check.matches(delivery, body)
        except Rejected:
            continue
        if match is not None:
            return match
    return None


def _secret_variations(source: Source, others: Sequence[Source], extra: Sequence[str]) -> Iterator[Variation]:
    own = _resolved_secrets(source)
    for secret in own:
        yield Variation("", secret)
    for secret in own:
        for bare in dict.fromkeys((secret.strip(), secret.strip().strip("\"'"), secret + "\n")):
            if bare != secret and bare:
                yield Variation(
                    "blank in the secret",
                    bare,
                    "The signature is valid with the secret without the whitespace around it.",
                )
    for other in others:
        if other.name != source.name:
            for secret in _resolved_secrets(other):
                if secret not in own:
                    shows = f"The signature is valid with a secret of source {other.name}."
                    yield Variation("other source", secret, shows)
    for number, secret in enumerate(extra):
        yield Variation(
            "other secret", secret, f"The signature is valid with secret {number + 1} of those that you passed."
        )


def _resolved_secrets(source: Source) -> list[str]:
    secrets = []
    for secret in source.settings.secrets:
        try:
            secrets.append(resolve(secret, ""))
        except ConfigurationError:
            continue
    return secrets


def _definition_variations(provider: Provider) -> Iterator[Variation]:
    """Yield the provider's definition with other forms of its keys and other encodings of its signatures."""
    yield Variation("", provider)
    for encoding in ("hex", "base64"):
        yield Variation(
            "encoding", _with(provider, encoding=encoding), f"The signature is valid when decoded as {encoding}."
        )
    for key in ("text", "base64", "hex", "whsec"):
        shows = f"The signature is valid when the secret is read as {key}."
        yield Variation("form of the secret", _with(provider, key=key), shows)


def _with(provider: Provider, **changes: str) -> Provider:
    """Return the definition with the form of its shared keys or the encoding of its signatures changed."""
    signatures = [
        msgspec.structs.replace(signature, **changes)
        if signature.family.shares_secret(signature) and not signature.family.sends_secret(signature)
        else signature
        for signature in provider.signatures
    ]
    return msgspec.structs.replace(provider, signatures=signatures)


def _address_variations(source: Source, delivery: Delivery) -> Iterator[Variation]:
    """Yield the addresses that may be registered, as (public_url, query).

    The sentence describes the change and does not show the address, because it may hold a token.
    """
    query = delivery.query
    public_url, _, own_query = (source.settings.public_url or delivery.address).partition("?")
    yield Variation("", (public_url, query))
    if not any(signature.covers_address for signature in source.provider.signatures):
        return
    queries = {own_query.encode(): "with the query of `public_url`", b"": "without the query", query: ""}
    variations = []
    for (url, url_changes), (query, query_change) in product(_spellings(public_url), queries.items()):
        changes = [*url_changes, query_change] if query_change else url_changes
        if changes:
            shows = f"The signature is valid for the address {' and '.join(changes)}."
            variations.append((len(changes), Variation("address", (url, query), shows)))
    yield from (variation for _, variation in sorted(variations, key=lambda pair: pair[0]))


def _spellings(url: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the spellings of an address without its query, each with a description of its changes."""
    parts = split_url(url)
    if parts is None:
        yield url, []
        return
    scheme, host, port, path = parts
    other = "http" if scheme == "https" else "https"
    slash = (path + "/", "with a slash at its end")
    if path.endswith("/"):
        slash = (path[:-1], "without the slash at its end")
    for kind, with_scheme in ((scheme, ""), (other, f"with {other} in place of {scheme}")):
        usual = USUAL_PORTS[kind]
        ports = [(port, ""), ("", f"without port {port}") if port else (usual, f"with port {usual}")]
        for (number, with_port), (rest, with_slash) in product(ports, ((path, ""), slash)):
            spelling = f"{kind}://{host}{':' + number if number else ''}{rest}"
            yield spelling, [word for word in (with_scheme, with_port, with_slash) if word]


def _body_variations(body: bytes) -> Iterator[Variation]:
    """Yield the body as it may have been before a proxy or tool changed it."""
    yield Variation("", body)
    seen = {body}
    for shows, original in (*_line_breaks(body), *_serialized_again(body)):
        if original not in seen:
            seen.add(original)
            yield Variation("rewritten JSON" if "JSON" in shows else "newline", original, shows)


def _line_breaks(body: bytes) -> Iterator[tuple[str, bytes]]:
    yield "The signature is valid for the body without its final line break.", body.rstrip(b"\r\n")
    yield "The signature is valid for the body with a final line break.", body + b"\n"
    yield "The signature is valid for the body with CR LF line breaks.", body.replace(b"\n", b"\r\n")
    yield "The signature is valid for the body with LF line breaks.", body.replace(b"\r\n", b"\n")
    yield "The signature is valid for the body without its byte order mark.", body.removeprefix(b"\xef\xbb\xbf")


def _serialized_again(body: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return
    dumps = partial(json.dumps, parsed)
    styles: list[tuple[str, Callable[[], str]]] = [
        ("compact", lambda: dumps(separators=(",", ":"), ensure_ascii=False)),
        ("compact, with non-ASCII characters escaped", lambda: dumps(separators=(",", ":"))),
        ("with blanks", lambda: dumps(ensure_ascii=False)),
        ("with spaces after separators and non-ASCII characters escaped", dumps),
        ("with an indent of two", lambda: dumps(indent=2, ensure_ascii=False)),
        ("with an indent of four", lambda: dumps(indent=4, ensure_ascii=False)),
        (
            "compact, with sorted keys",
            lambda: dumps(separators=(",", ":"), sort_keys=True, ensure_ascii=False),
        ),
        ("compact, with escaped slashes", lambda: dumps(separators=(",", ":")).replace("/", "\\/")),
    ]
    for style, write in styles:
        try:
            yield f"The signature is valid for the same JSON, serialized {style}.", write().encode()
        except (ValueError, RecursionError, UnicodeError):
            continue
