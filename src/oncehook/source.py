"""A configured endpoint, made ready at start-up: its provider's definition with its own secrets, types and limits.

`read` turns a verified delivery into claims. It never raises for a body that is authentic: what cannot be used is a
failed receipt under the hash of its bytes, so that a provider that changes its shape loses no event.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from oncehook import providers
from oncehook.errors import ConfigurationError, Rejected
from oncehook.extract import (
    Find,
    NotReadable,
    TooDeep,
    compile_expression,
    compile_key,
    fingerprint,
    headers_of,
    indexed,
    moment,
    parse,
    split,
)
from oncehook.providers import Provider
from oncehook.providers.certificates import Certificates
from oncehook.receipt import Claim, Delivery, State
from oncehook.settings import SourceSettings, size
from oncehook.verify import Verifier

NEVER_KEPT = frozenset(
    b"authorization cookie set-cookie proxy-authorization x-api-key host connection accept accept-encoding "
    b"content-length transfer-encoding expect upgrade keep-alive te trailer forwarded x-forwarded-for "
    b"x-forwarded-proto x-forwarded-host x-real-ip x-auth-token x-access-token x-amz-security-token "
    b"cf-access-client-secret x-gitlab-token x-hook-secret x-webhook-secret x-webhook-token".split()
)
CERTIFICATE = "certificate"
"""The mark of a source whose deliveries are verified by a certificate that is fetched."""

_encode_json = msgspec.json.Encoder().encode


class Source:
    """A source, ready to receive."""

    def __init__(
        self,
        name: str,
        settings: SourceSettings,
        *,
        own_providers: Mapping[str, Mapping[str, Any]] | None = None,
        max_body: int,
        certificates: Certificates | None = None,
    ) -> None:
        where = f"sources.{name}"
        self.name = name
        self.settings = settings
        self.provider: Provider = providers.find(settings.provider or name, own_providers or {})
        self.provider_name = self.provider.name
        self.certificates = certificates or Certificates()
        for option in self.provider.options:
            if not getattr(settings, option):
                raise ConfigurationError(
                    f"{where}.{option} is missing: {self.provider.title} cannot be received safely without it"
                )
        self.topics = [re.compile(translate(topic)) for topic in settings.topics]
        self.verifier: Verifier | None = None
        self.marks: list[str] = [CERTIFICATE]
        if settings.verify == "signature":
            secrets = [resolve(secret, f"{where}.secrets[{i}]") for i, secret in enumerate(settings.secrets)]
            self.marks = [mark(name, secret) for secret in secrets] or self.marks
            self.verifier = Verifier(
                self.provider,
                secrets,
                where=where,
                tolerance=settings.tolerance,
                topics=self.topics,
                certificates=self.certificates,
            )
        self.uses = [0] * len(self.marks)  # how often each secret verified, since that was last written
        # A handshake that makes us call somebody is only for senders that have proved who they are.
        handshake = self.provider.handshake
        self.shakes_hands = handshake is not None and (self.verifier is not None or handshake.kind == "echo")
        self.fetches_certificates = any(s.algorithm == "sns" for s in self.provider.signatures) and not settings.secrets
        self.max_body = settings.max_body or (size(self.provider.max_body) if self.provider.max_body else max_body)
        self.inline = settings.mode == "inline"
        self.first_state = State.PROCESSING if self.inline else State.RECEIVED
        self.horizon = self.provider.horizon or 30 * 86400.0
        self.types = None if settings.types is None else [compile_pattern(pattern) for pattern in settings.types]
        self._prepare_facts(settings, where)
        self.find_serial = self._serial(settings, where)

    def _prepare_facts(self, settings: SourceSettings, where: str) -> None:
        facts = self.provider.event
        try:
            self.find_id = compile_key(settings.id or facts.id)
            self.find_correlation = _optional(settings.correlation)
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        self.find_type = compile_expression(facts.type)
        self.find_object = _optional(facts.object)
        self.find_occurred = _optional(facts.occurred_at, names=False)
        self.find_delivery = _optional(facts.delivery_id)
        self.split = facts.split
        self.volatile = tuple(tuple(path.split(".")) for path in facts.volatile)
        secret_headers = {s.header.lower().encode() for s in self.provider.signatures if s.header}
        self.dropped = NEVER_KEPT | secret_headers
        self.naming = headers_of(settings.id or facts.id) | headers_of(facts.type)

    def _serial(self, settings: SourceSettings, where: str) -> Find | None:
        """Where the key is by which events take turns, or None if they do not."""
        if settings.serial_by is None:
            return None
        if self.inline:
            raise ConfigurationError(
                f'{where}.serial_by needs mode = "queued": an inline event is handled while its sender waits, '
                f"and cannot wait for the ones before it"
            )
        if settings.serial_by == ("object_id",):
            if self.find_object is None:
                raise ConfigurationError(
                    f"{where}.serial_by is object_id, and {self.provider_name} does not say where that is: "
                    f"name a path in the body, such as data.id"
                )
            return self.find_object
        try:
            return compile_expression(settings.serial_by)
        except ValueError as error:
            raise ConfigurationError(f"{where}.serial_by: {error}") from None

    # -- reading a verified delivery ------------------------------------------------------------------------------

    def parse(self, delivery: Delivery) -> Any:
        """The body as plain data, or None where it cannot be read as a whole. Raises Rejected("malformed")."""
        if delivery.repeated and not self.naming.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header that names the event came twice")
        form = self.provider.sends_form(delivery.headers)
        try:
            parsed = parse(delivery.body, form=form)
            field = self.provider.form_field
            return parse(parsed[field].encode()) if form and field and field in parsed else parsed
        except NotReadable as error:
            if self._splits(delivery.body):
                return None  # one element is broken: it fails alone
            raise Rejected("malformed", str(error)) from None
        except TooDeep:
            return None

    def _splits(self, body: bytes) -> bool:
        try:
            return self.split is not None and bool(split(body, self.split))
        except NotReadable:
            return False

    def read(self, delivery: Delivery, parsed: Any) -> list[Claim]:
        """One claim for each event of a verified delivery."""
        headers = self._kept_headers(delivery)
        if self.split is None:
            return [self._claim(delivery.body, parsed, delivery, headers)]
        try:
            elements = split(delivery.body, self.split)
        except NotReadable:
            return [self._unusable(delivery.body, headers, f"the body holds no array of events at {self.split!r}")]
        return [self._element(element, delivery, headers) for element in elements]

    def _element(self, element: bytes, delivery: Delivery, headers: str) -> Claim:
        try:
            parsed = parse(element)
        except (NotReadable, TooDeep) as error:
            return self._unusable(element, headers, f"this element of the batch cannot be read: {error}")
        return self._claim(element, parsed, delivery, headers)

    def _claim(self, body: bytes, parsed: Any, delivery: Delivery, headers: str) -> Claim:
        event_id = indexed(self.find_id(parsed, delivery.headers))
        type_ = indexed(self.find_type(parsed, delivery.headers))
        if event_id is None or type_ is None:
            missing = "id" if event_id is None else "type"
            return self._unusable(
                body, headers, f"the body has no usable {missing} where {self.provider_name} has it", type_
            )
        return Claim(
            self.name,
            self.provider_name,
            event_id,
            type_,
            indexed(self.find_object(parsed, delivery.headers)) if self.find_object else None,
            indexed(self.find_delivery(parsed, delivery.headers)) if self.find_delivery else None,
            moment(self.find_occurred(parsed, delivery.headers)) if self.find_occurred else None,
            self._correlation(parsed, delivery),
            self.first_state if self.types is None or self.takes(type_) else State.IGNORED,
            None,
            fingerprint(body, parsed, self.volatile),
            body,
            headers,
            serial_key=indexed(self.find_serial(parsed, delivery.headers)) if self.find_serial else None,
        )

    def _unusable(self, body: bytes, headers: str, error: str, type_: str | None = None) -> Claim:
        digest = hashlib.sha256(body).digest()
        return Claim(
            self.name, self.provider_name, "sha256:" + digest.hex(), type_, None, None, None, None,
            State.FAILED, error, digest, body, headers,
        )  # fmt: skip

    def _correlation(self, parsed: Any, delivery: Delivery) -> str | None:
        found = self.find_correlation(parsed, delivery.headers) if self.find_correlation else None
        if found is None and b"traceparent" in delivery.headers:
            found = delivery.headers[b"traceparent"].decode("latin-1")
        return indexed(found)

    def _kept_headers(self, delivery: Delivery) -> str:
        dropped = self.dropped
        return _headers_as_json(tuple([pair for pair in delivery.headers.items() if pair[0] not in dropped]))

    def takes(self, type_: str) -> bool:
        """Whether the allow-list has this type."""
        return self.types is None or any(pattern.fullmatch(type_) for pattern in self.types)


@lru_cache(256)  # most senders repeat themselves in every header that is kept
def _headers_as_json(headers: tuple[tuple[bytes, bytes], ...]) -> str:
    kept = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return _encode_json(kept).decode()


def _optional(expression: str | Sequence[str] | None, *, names: bool = True) -> Find | None:
    return None if expression is None else compile_expression(expression, names=names)


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A type pattern: shell wildcards, and a match as a dotted prefix too (`push` matches `push.forced`)."""
    return re.compile(f"(?:{translate(pattern)})|(?:{translate(pattern + '.*')})")


def mark(source: str, secret: str) -> str:
    """A short mark by which a secret of a source is told from another. It narrows down nothing: 32 bits of a hash."""
    return hashlib.sha256(f"oncehook secret\n{source}\n{secret}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def resolve(secret: str, where: str) -> str:
    """A secret's value out of `env:NAME`, `file:PATH` or the value itself. Errors name the place, never the value."""
    kind, _, name = secret.partition(":")
    if kind == "env":
        value = os.environ.get(name, "")
        if not value.strip():
            raise ConfigurationError(f"{where} is empty: set {name} in the environment, or remove the source")
    elif kind == "file":
        try:
            value = Path(name).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{where}: {name} cannot be read ({type(error).__name__})") from None
        if not value:
            raise ConfigurationError(f"{where} is empty: {name} has nothing in it")
    else:
        value = secret
        if not value.strip():
            raise ConfigurationError(f"{where} is empty: give the secret, or remove the source")
    return value
