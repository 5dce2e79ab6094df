"""A configured endpoint, made ready at start-up: its provider's definition with its own secrets, types and limits.

`read` turns a verified delivery into claims. It never raises for a body that is authentic: what cannot be used is a
failed receipt under the hash of its bytes, so that a provider that changes its shape loses no event.
"""

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.secret import is_reference, mark, resolve
from oncehook.config.settings import SourceSettings, retry_of
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected, Unavailable
from oncehook.model.patterns import compile_pattern
from oncehook.model.states import State
from oncehook.model.values import size
from oncehook.providers import cloudevents
from oncehook.providers import definition as providers
from oncehook.providers.certificates import Certificates
from oncehook.providers.definition import Handshake, Provider
from oncehook.providers.expressions import (
    CONTENT,
    NEW,
    Find,
    Headers,
    NotReadable,
    TooDeep,
    compile_expression,
    compile_key,
    fingerprint,
    headers_of,
    indexed,
    made_for,
    moment,
    parse,
    split,
)
from oncehook.providers.handshake import Host, is_handshake, kind_of
from oncehook.providers.kept_headers import KeptNames, as_json
from oncehook.providers.proxied import Proxies
from oncehook.providers.template import Body
from oncehook.providers.verify import Verifier
from oncehook.providers.xml import read_xml

HORIZON = 30 * 86400.0  # seconds for which a provider retries, where its definition does not say
CERTIFICATE = "certificate"
"""The mark of a source whose deliveries are verified by a certificate that is fetched."""

INLINE_ATTEMPTS = 5
"""How many deliveries of an inline event are attempts, unless the source says."""

MOST_OFFERS = 5
"""So many secrets a minute may be offered to a source; more are a stranger's noise in the operator's log."""

FROM_SECRETS = frozenset(
    ("verifier", "marks", "uses", "waits_for_secret", "fetches_certificates", "proxies", "verify_token", "is_plain")
)
"""What a source is without until its secrets are loaded."""


class Source:
    """A source. It is ready to receive once its secrets are loaded."""

    verifier: Verifier | None
    marks: list[str]
    uses: list[int]  # how often each secret verified, since that was last written
    waits_for_secret: bool
    fetches_certificates: bool
    proxies: Proxies | None  # who may say which address a sender used
    verify_token: bytes
    is_plain: bool  # a delivery needs nothing but to be verified, read and claimed

    def __init__(
        self,
        name: str,
        settings: SourceSettings,
        *,
        own_providers: Mapping[str, Mapping[str, Any]] | None = None,
        max_body: int,
        certificates: Certificates | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        where = f"sources.{name}"
        self.name = name
        self.settings = settings
        self.provider: Provider = providers.find(settings.provider or name, own_providers or {})
        self.provider_name = self.provider.name
        self.certificates = (certificates or Certificates()).for_source()
        for option in self.provider.options:
            if not getattr(settings, option) and not (option == "public_url" and proxies):
                other = ", or without your proxies in trusted_proxies" if option == "public_url" else ""
                raise ConfigurationError(
                    f"{where}.{option} is missing: {self.provider.title} cannot be received safely without it{other}"
                )
        self.is_verified = settings.verify == "signature"
        self._trusted_proxies = proxies
        self._prepare_handshakes()
        self.max_body = settings.max_body or (size(self.provider.max_body) if self.provider.max_body else max_body)
        self.inline = settings.mode == "inline"
        self.first_state = State.PROCESSING if self.inline else State.RECEIVED
        self.horizon = self.provider.horizon or HORIZON
        self.types = None if settings.types is None else [compile_pattern(pattern) for pattern in settings.types]
        self._prepare_facts(settings, where)
        self.find_serial = self._serial(settings, where)
        self.retry = retry_of(settings, where)
        self.inline_attempts = settings.max_attempts or INLINE_ATTEMPTS
        if not any(is_reference(secret) for secret in (*settings.secrets, settings.verify_token or "")):
            self.load_secrets()  # a secret that is written out is checked where it stands

    def load_secrets(self) -> None:
        """Resolve the secrets, and make what depends on them. Raises ConfigurationError, which names the place.

        The inbox calls it at every start. Where a source is read without a start, its first use does.
        """
        where, settings = f"sources.{self.name}", self.settings
        marks, verifier = [CERTIFICATE], None
        if self.is_verified:
            given = [resolve(secret, f"{where}.secrets[{i}]") for i, secret in enumerate(settings.secrets)]
            marks = [mark(self.name, secret) for secret in given] or marks
            verifier = self.make_verifier(self.provider, given, where=where)
        token = settings.verify_token
        self.verify_token = resolve(token, f"{where}.verify_token").encode() if token else b""
        self.verifier, self.marks, self.uses = verifier, marks, [0] * len(marks)
        self.waits_for_secret = verifier is not None and not verifier.checks
        self.fetches_certificates = verifier is not None and verifier.fetches
        self.proxies = self._trusted_proxies if verifier is not None and verifier.asks_address else None
        more = self.inline, self.fetches_certificates, self.proxies, self.handshakes, self.unsigned_handshakes
        self.is_plain = not any(more)

    if not TYPE_CHECKING:  # it would let every misspelt attribute pass

        def __getattr__(self, name: str) -> Any:
            if name not in FROM_SECRETS:
                raise AttributeError(f"a source has no {name}")
            self.load_secrets()
            return self.__dict__[name]

    def _prepare_handshakes(self) -> None:
        # A handshake that makes us call somebody is only for senders that have proved who they are.
        known = [one for one in self.provider.handshakes if self.is_verified or not kind_of(one.kind).calls_sender]
        self.handshakes = [one for one in known if one.verified]
        self.unsigned_handshakes = [one for one in known if not one.verified]
        self.signed_kinds = [kind_of(one.kind) for one in self.provider.handshakes if one.is_keyed]
        self.methods = sorted({"POST", *(one.method for one in known)})
        self._offers: deque[float] = deque(maxlen=MOST_OFFERS)

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
        self.find_unique = [compile_expression(expression) for expression in facts.unique]
        self.made = made_for(settings.id or facts.id)
        self.kinds = [(compile_expression(locator), types) for locator, types in facts.kinds.items()]
        self.not_events = [parse(text.encode()) for text in facts.not_events]
        self.split = facts.split
        self.single = facts.single
        self.cloudevents = "cloudevents" in self.provider.content
        self.only_json = self.provider.content == ("json",)
        self.volatile = tuple(tuple(path.split(".")) for path in facts.volatile)
        ways = self.provider.signatures
        signatures = {header.lower().encode() for way in ways if (header := way.family.signature_header(way))}
        read = set().union(*(way.family.signed_headers(way) for way in ways)) - signatures
        found = (settings.id or facts.id, facts.type, facts.object, facts.occurred_at, facts.delivery_id, *facts.kinds)
        needed = [headers_of(one) for one in (*found, settings.correlation, settings.serial_by) if one is not None]
        self.kept_names = KeptNames(dropped=signatures, needed=read.union(*needed))
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

    def make_verifier(
        self, provider: Provider, secrets: Sequence[str], *, where: str, public_url: str | None = None
    ) -> Verifier:
        """A verifier with this source's settings; the doctor tries other definitions, secrets and addresses."""
        settings = self.settings if public_url is None else replace(self.settings, public_url=public_url)
        return Verifier(provider, secrets, where=where, settings=settings, certificates=self.certificates)

    # -- handshakes -----------------------------------------------------------------------------------------------

    def body_of(self, delivery: Delivery) -> Body:
        return Body(delivery, self.provider.sends_form)

    def handshake_of(self, delivery: Delivery, among: Sequence[Handshake]) -> Handshake | None:
        """The handshake that a delivery is, if it is one of these."""
        body = self.body_of(delivery)
        return next((one for one in among if is_handshake(one, delivery, body)), None)

    def host(self, offer: Callable[[str], None], verified_by: int = 0) -> Host:
        """What an answer to a handshake may need of this source."""
        keys = sorted(self._keys(), key=lambda pair: (pair[0] != verified_by, pair[0]))
        return Host(self.certificates, [key for _, key in keys], self.verify_token, self._limited(offer))

    def _keys(self) -> Sequence[tuple[int, Any]]:
        return self.verifier.keys[0] if self.verifier is not None else ()

    def _limited(self, offer: Callable[[str], None]) -> Callable[[str], None]:
        def limited(secret: str) -> None:
            now = SYSTEM.monotonic()
            if len(self._offers) == MOST_OFFERS and self._offers[0] > now - 60:
                raise Unavailable("too many secrets were offered in the last minute", retry_after=60)
            self._offers.append(now)
            offer(secret)

        return limited

    # -- reading a verified delivery ------------------------------------------------------------------------------

    def parse(self, delivery: Delivery) -> Any:
        """The body as plain data, or None where it cannot be read as a whole. Raises Rejected("malformed")."""
        if delivery.repeated and self._names_twice(delivery.repeated):
            raise Rejected("malformed", "a header that names the event came twice")
        if self.signed_kinds:
            self._reject_signed_word(delivery.body)
        try:
            parsed = parse(delivery.body) if self.only_json else self._parse(delivery)
        except NotReadable as error:
            if self._splits(delivery.body):
                return None  # one element is broken: it fails alone
            raise Rejected("malformed", str(error)) from None
        except TooDeep:
            return None
        if self.signed_kinds and not isinstance(parsed, dict | list):
            raise Rejected("malformed", "the body is neither an object nor an array")
        return parsed

    def _reject_signed_word(self, message: bytes) -> None:
        """Reject what a handshake of this source signs for anybody who asks: it is no event, whatever its signature."""
        text = message.decode("latin-1")
        if any(kind.is_signable(text) for kind in self.signed_kinds):
            raise Rejected("malformed", "the signed text is a challenge of the handshake, not an event")

    def _names_twice(self, repeated: frozenset[bytes]) -> bool:
        if self.cloudevents and any(name.startswith(b"ce-") for name in repeated):
            return True
        return not self.naming.isdisjoint(repeated)

    def _parse(self, delivery: Delivery) -> Any:
        if self.cloudevents:
            return cloudevents.read(delivery.body, delivery.headers)
        if not self.provider.sends_form(delivery.headers):
            return parse(delivery.body)
        form = parse(delivery.body, form=True)
        field = self.provider.form_field
        if not field or field not in form:
            return form
        if self.signed_kinds:
            self._reject_signed_word(form[field].encode("utf-8", "surrogatepass"))
        return read_xml(form[field]) if self.provider.form_holds == "xml" else parse(form[field].encode())

    def _splits(self, body: bytes) -> bool:
        try:
            return self.split is not None and bool(split(body, self.split))
        except NotReadable:
            return False

    def read(self, delivery: Delivery, parsed: Any) -> list[Claim]:
        """One claim for each event of a verified delivery."""
        headers = self._kept_headers(delivery)
        if self.split is None or (self.cloudevents and not cloudevents.is_batch(delivery.headers)):
            return [self._claim(delivery.body, parsed, delivery, headers)]
        try:
            elements = split(self._array_in(delivery), self.split)
        except NotReadable:
            if self.single and isinstance(parsed, dict):
                return [self._claim(delivery.body, parsed, delivery, headers)]
            content = self._content(delivery.body, delivery)
            return [
                self._unusable(delivery.body, content, headers, f"the body has no array of events at {self.split!r}")
            ]
        if self.provider.sends_form(delivery.headers):  # the elements are JSON, whatever they came in
            headers = self._kept_headers(delivery, content_type=b"application/json")
        found = (self._element(element, delivery, headers) for element in elements)
        return [claim for claim in found if claim is not None]

    def is_batch(self, claims: Sequence[Claim], delivery: Delivery) -> bool:
        """Whether the sender is told about many events: not if its whole body was one."""
        if self.single or self.cloudevents:
            return not (len(claims) == 1 and claims[0].body is delivery.body)
        return self.split is not None

    def _array_in(self, delivery: Delivery) -> bytes:
        """The bytes that hold the array: the body, or the field of a form."""
        field = self.provider.form_field
        if field is None or not self.provider.sends_form(delivery.headers):
            return delivery.body
        form = parse(delivery.body, form=True)
        return str(form.get(field, "")).encode("utf-8", "surrogatepass")

    def _element(self, element: bytes, delivery: Delivery, headers: str) -> Claim | None:
        try:
            parsed = parse(element)
        except (NotReadable, TooDeep) as error:
            return self._unusable(element, element, headers, f"this element of the batch cannot be read: {error}")
        if self.not_events and parsed in self.not_events:
            return None
        return self._claim(element, parsed, delivery, headers)

    def _claim(self, body: bytes, parsed: Any, delivery: Delivery, headers: str) -> Claim:
        content = self._content(body, delivery)
        digest = fingerprint(content, parsed, self.volatile)
        named = delivery.headers if not self.made else self._with_made(delivery.headers, digest)
        event_id = indexed(self.find_id(parsed, named))
        kind = self._kind(parsed, delivery.headers) if self.kinds else None
        type_ = indexed(kind or self.find_type(parsed, delivery.headers))
        keys = self._unique(parsed, delivery.headers) if self.find_unique else ()
        if event_id is None or type_ is None:
            missing = "id" if event_id is None else "type"
            error = f"the body has no usable {missing} where {self.provider_name} has it"
            return self._unusable(body, content, headers, error, type_=type_, keys=keys)
        return Claim(
            source=self.name,
            provider=self.provider_name,
            event_id=event_id,
            type=type_,
            object_id=indexed(self.find_object(parsed, delivery.headers)) if self.find_object else None,
            occurred_at=moment(self.find_occurred(parsed, delivery.headers)) if self.find_occurred else None,
            delivery_id=indexed(self.find_delivery(parsed, delivery.headers)) if self.find_delivery else None,
            correlation_id=self._correlation(parsed, delivery),
            status=self.first_state if self.types is None or self.takes(type_) else State.IGNORED,
            fingerprint=digest,
            body=body,
            headers=headers,
            serial_key=indexed(self.find_serial(parsed, delivery.headers)) if self.find_serial else None,
            keys=keys,
        )

    def _unique(self, parsed: Any, headers: Headers) -> tuple[str, ...]:
        """The event's `unique` facts that are there, each told from the others by its number."""
        found = [(number, find(parsed, headers)) for number, find in enumerate(self.find_unique)]
        return tuple(indexed(f"{number}:{value}") or "" for number, value in found if value)

    def _with_made(self, headers: Headers, digest: bytes) -> Headers:
        return {**headers, CONTENT: digest.hex().encode(), NEW: secrets.token_hex(16).encode()}

    def _kind(self, parsed: Any, headers: Headers) -> str | None:
        for find, types in self.kinds:
            found = types.get(find(parsed, headers) or "")
            if found is not None:
                return found
        return None

    def _content(self, body: bytes, delivery: Delivery) -> bytes:
        """What the hash of an event is made of."""
        if self.only_json or body is not delivery.body:
            return body
        signature = self.provider.signatures[0]
        return signature.family.signed_content(signature, delivery, self.body_of(delivery))

    def _unusable(
        self,
        body: bytes,
        content: bytes,
        headers: str,
        error: str,
        *,
        type_: str | None = None,
        keys: tuple[str, ...] = (),
    ) -> Claim:
        digest = hashlib.sha256(content).digest()
        return Claim(
            source=self.name,
            provider=self.provider_name,
            event_id="sha256:" + digest.hex(),
            type=type_,
            object_id=None,
            occurred_at=None,
            delivery_id=None,
            correlation_id=None,
            status=State.FAILED,
            last_error=error,
            fingerprint=digest,
            body=body,
            headers=headers,
            keys=keys,
        )

    def _correlation(self, parsed: Any, delivery: Delivery) -> str | None:
        found = self.find_correlation(parsed, delivery.headers) if self.find_correlation else None
        if found is None and b"traceparent" in delivery.headers:
            found = delivery.headers[b"traceparent"].decode("latin-1")
        return indexed(found)

    def _kept_headers(self, delivery: Delivery, *, content_type: bytes | None = None) -> str:
        is_kept = self.kept_names
        kept = [pair for pair in delivery.headers.items() if is_kept[pair[0]]]
        if content_type is not None:
            kept = [(name, content_type if name == b"content-type" else value) for name, value in kept]
        return as_json(tuple(kept))

    def takes(self, type_: str) -> bool:
        """Whether the allow-list has this type."""
        return self.types is None or any(pattern.fullmatch(type_) for pattern in self.types)


def _optional(expression: str | Sequence[str] | None, *, names: bool = True) -> Find | None:
    return None if expression is None else compile_expression(expression, names=names)
