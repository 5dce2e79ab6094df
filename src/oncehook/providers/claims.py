"""Reads the events of a verified delivery: one claim each, with id, type, object and time.

`read` never raises for an authentic body. A body without usable facts becomes a failed receipt with the hash of its
bytes as id. So no event is lost when a provider changes its format.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from oncehook.config.settings import SourceSettings
from oncehook.model.claim import Claim, ConsumerClaim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.patterns import compile_pattern
from oncehook.model.states import State
from oncehook.providers import cloudevents
from oncehook.providers.conditions import make_condition, type_condition
from oncehook.providers.definition import Provider
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
    generated_facts,
    headers_of,
    index_text,
    parse,
    parse_time,
    split,
)
from oncehook.providers.handshake import kind_of
from oncehook.providers.stored_headers import StoredNames, headers_json
from oncehook.providers.subscriptions import Subscribers
from oncehook.providers.template import Body
from oncehook.providers.where import Facts, Where, compile_where
from oncehook.providers.xml import read_xml


class ClaimReader:
    """Reads the deliveries of one source. It compiles the expressions of the provider's definition at start-up."""

    def __init__(self, source: str, provider: Provider, settings: SourceSettings, *, has_tenants: bool = False) -> None:
        """Raise ConfigurationError for an expression in `settings` that cannot be used."""
        where = f"sources.{source}"
        self.source = source
        self.tenant = ""
        self.provider = provider
        self.provider_name = provider.name
        self.is_inline = settings.mode == "inline"
        self.first_state = State.PROCESSING if self.is_inline else State.RECEIVED
        self.types = None if settings.types is None else [compile_pattern(pattern) for pattern in settings.types]
        self.where = None if settings.where is None else self._compile_where(settings, where, has_tenants)
        self.takes_all = self.types is None and self.where is None
        self.subscribers = Subscribers()  # the consumers other than `main`
        self.signed_kinds = [kind_of(handshake.kind) for handshake in provider.handshakes if handshake.is_keyed]
        self._compile_facts(settings, where)
        self._find_serial = self._serial(settings, where)
        self.find_serial = with_tenant("", self._find_serial) if has_tenants else self._find_serial

    def _compile_where(self, settings: SourceSettings, where: str, has_tenants: bool) -> Where:
        given = [make_condition("@source", "equals", self.source, where)]
        if settings.types is not None:
            given.append(type_condition(settings.types, f"{where}.types"))
        if not has_tenants:
            given.append(make_condition("@tenant", "exists", False, f"{where}.tenants"))
        return compile_where(settings.where, f"{where}.where", given=given)

    def for_tenant(self, tenant: str) -> "ClaimReader":
        """A reader whose events belong to a tenant. It shares everything that is compiled."""
        reader = copy(self)
        reader.tenant = tenant
        reader.find_serial = with_tenant(tenant, self._find_serial)
        return reader

    def _compile_facts(self, settings: SourceSettings, where: str) -> None:
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
        self.generated = generated_facts(settings.id or facts.id)
        self.kinds = [(compile_expression(locator), types) for locator, types in facts.kinds.items()]
        self.not_events = [parse(text.encode()) for text in facts.not_events]
        self.split = facts.split
        self.single = facts.single
        self.cloudevents = "cloudevents" in self.provider.content
        self.only_json = self.provider.content == ("json",)
        self.volatile = tuple(tuple(path.split(".")) for path in facts.volatile)
        of_event = settings.id or facts.id, facts.type, facts.object, facts.occurred_at, facts.delivery_id, *facts.kinds
        everything = (*of_event, settings.correlation, settings.serial_by)
        expressions = [expression for expression in everything if expression is not None]
        self.stored_names = self._stored_names(set().union(*map(headers_of, expressions)))
        self.naming = headers_of(settings.id or facts.id) | headers_of(facts.type)

    def _stored_names(self, needed: set[bytes]) -> StoredNames:
        """The names of the headers that are stored with an event. The signature is never stored."""
        alternatives = [(signature.family, signature) for signature in self.provider.signatures]
        headers = (family.signature_header(signature) for family, signature in alternatives)
        dropped = {header.lower().encode() for header in headers if header}
        signed = set().union(*(family.signed_headers(signature) for family, signature in alternatives))
        return StoredNames(dropped=dropped, needed=needed | (signed - dropped))

    def _serial(self, settings: SourceSettings, where: str) -> Find | None:
        """Find the serial key of an event. None if the source processes events concurrently."""
        if settings.serial_by is None:
            return None
        if self.is_inline:
            raise ConfigurationError(
                f'{where}.serial_by needs mode = "queued": an inline event is processed while its sender waits, '
                f"so it cannot wait for earlier events"
            )
        if settings.serial_by == ("object_id",):
            if self.find_object is None:
                raise ConfigurationError(
                    f"{where}.serial_by is object_id, but the definition of {self.provider_name} has no `object`: "
                    f"set a path in the body, such as data.id"
                )
            return self.find_object
        try:
            return compile_expression(settings.serial_by)
        except ValueError as error:
            raise ConfigurationError(f"{where}.serial_by: {error}") from None

    def parse(self, delivery: Delivery) -> Any:
        """The body as plain data, or None if only its elements can be read. Raises Rejected("malformed")."""
        if delivery.repeated and self._repeats_naming_header(delivery.repeated):
            raise Rejected("malformed", "a header with the id or type of the event is repeated")
        if self.signed_kinds:
            self._reject_challenge(delivery.body)
        try:
            parsed = parse(delivery.body) if self.only_json else self._parse(delivery)
        except NotReadable as error:
            if self._splits(delivery.body):
                return None  # one element is broken, and only that element fails
            raise Rejected("malformed", str(error)) from None
        except TooDeep:
            return None
        if self.signed_kinds and not isinstance(parsed, dict | list):
            raise Rejected("malformed", "the body is neither an object nor an array")
        return parsed

    def _reject_challenge(self, message: bytes) -> None:
        """Reject a text that a handshake of this source would sign for anyone. Signed or not, it is not an event."""
        text = message.decode("latin-1")
        if any(kind.is_signable(text) for kind in self.signed_kinds):
            raise Rejected("malformed", "the signed text is a challenge of the handshake, not an event")

    def _repeats_naming_header(self, repeated: frozenset[bytes]) -> bool:
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
            self._reject_challenge(form[field].encode("utf-8", "surrogatepass"))
        return read_xml(form[field]) if self.provider.form_holds == "xml" else parse(form[field].encode())

    def parse_stored(self, body: bytes, headers: Mapping[str, str]) -> Any:
        """Parse the stored payload of an event again. Returns None if it cannot be read."""
        for read in (self._parse, lambda delivery: parse(delivery.body)):  # an element of a batch is JSON
            with contextlib.suppress(NotReadable, TooDeep, Rejected):
                return read(Delivery.of(body, headers))
        return None

    def _splits(self, body: bytes) -> bool:
        try:
            return self.split is not None and bool(split(body, self.split))
        except NotReadable:
            return False

    def read(self, delivery: Delivery, parsed: Any) -> list[Claim]:
        """One claim for each event of a verified delivery."""
        headers = self._stored_headers(delivery)
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
        if self.provider.sends_form(delivery.headers):  # the elements are JSON, even if the body is a form
            headers = self._stored_headers(delivery, content_type=b"application/json")
        claims = (self._element(element, delivery, headers) for element in elements)
        return [claim for claim in claims if claim is not None]

    def is_batch(self, claims: Sequence[Claim], delivery: Delivery) -> bool:
        """Whether the response reports counts of events. False if the whole body was one event."""
        if self.single or self.cloudevents:
            return not (len(claims) == 1 and claims[0].body is delivery.body)
        return self.split is not None

    def _array_in(self, delivery: Delivery) -> bytes:
        """The bytes that hold the array: the body, or a form field."""
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
        id_headers = delivery.headers if not self.generated else self._with_generated(delivery.headers, digest)
        event_id = index_text(self.find_id(parsed, id_headers))
        kind = self._kind(parsed, delivery.headers) if self.kinds else None
        type_ = index_text(kind or self.find_type(parsed, delivery.headers))
        keys = self._unique(parsed, delivery.headers) if self.find_unique else ()
        if event_id is None or type_ is None:
            missing = "id" if event_id is None else "type"
            error = f"the event has no usable {missing} where the definition of {self.provider_name} expects it"
            return self._unusable(body, content, headers, error, type_=type_, keys=keys)
        object_id = index_text(self.find_object(parsed, delivery.headers)) if self.find_object else None
        reason = None if self.takes_all else self.filter_reason(parsed, type_, object_id)
        serial_key = index_text(self.find_serial(parsed, delivery.headers)) if self.find_serial else None
        copies: tuple[ConsumerClaim, ...] = ()
        if self.subscribers.subscriptions and reason is None:
            copies = self.subscribers.copies(type_, parsed, self.facts(type_, object_id), serial_key)
        return Claim(
            source=self.source,
            tenant=self.tenant,
            provider=self.provider_name,
            event_id=event_id,
            type=type_,
            object_id=object_id,
            occurred_at=parse_time(self.find_occurred(parsed, delivery.headers)) if self.find_occurred else None,
            delivery_id=index_text(self.find_delivery(parsed, delivery.headers)) if self.find_delivery else None,
            correlation_id=self._correlation(parsed, delivery),
            status=self.first_state if reason is None else State.IGNORED,
            last_error=reason,
            fingerprint=digest,
            body=body,
            headers=headers,
            serial_key=serial_key,
            keys=keys,
            copies=copies,
        )

    def _unique(self, parsed: Any, headers: Headers) -> tuple[str, ...]:
        """The event's `unique` facts that are present. Each value is prefixed with the number of its expression."""
        values = [(number, find(parsed, headers)) for number, find in enumerate(self.find_unique)]
        return tuple(index_text(f"{number}:{value}") or "" for number, value in values if value)

    def _with_generated(self, headers: Headers, digest: bytes) -> Headers:
        # A delivery that waits in a queue has its token already: no HTTP header can have this name.
        new = headers.get(NEW) or secrets.token_hex(16).encode()
        return {**headers, CONTENT: digest.hex().encode(), NEW: new}

    def _kind(self, parsed: Any, headers: Headers) -> str | None:
        for find, types in self.kinds:
            type_ = types.get(find(parsed, headers) or "")
            if type_ is not None:
                return type_
        return None

    def _content(self, body: bytes, delivery: Delivery) -> bytes:
        """The bytes to hash for an event."""
        if self.only_json or body is not delivery.body:
            return body
        signature = self.provider.signatures[0]
        return signature.family.signed_content(signature, delivery, Body(delivery, self.provider.sends_form))

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
            source=self.source,
            tenant=self.tenant,
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
        value = self.find_correlation(parsed, delivery.headers) if self.find_correlation else None
        if value is None and b"traceparent" in delivery.headers:
            value = delivery.headers[b"traceparent"].decode("latin-1")
        return index_text(value)

    def _stored_headers(self, delivery: Delivery, *, content_type: bytes | None = None) -> str:
        is_stored = self.stored_names
        stored = [pair for pair in delivery.headers.items() if is_stored[pair[0]]]
        if content_type is not None:
            stored = [(name, content_type if name == b"content-type" else value) for name, value in stored]
        return headers_json(tuple(stored))

    def filter_reason(self, parsed: Any, type_: str, object_id: str | None) -> str | None:
        """Why the source's `types` or `where` leave an event out, or None if they do not."""
        if not self.accepts_type(type_):
            return f"the type {type_} is not in sources.{self.source}.types"
        if self.where is None:
            return None
        return self.where.reason(parsed, self.facts(type_, object_id))

    def facts(self, type_: str, object_id: str | None) -> Facts:
        """The facts of an event that a filter can name."""
        return {"type": type_, "object_id": object_id, "source": self.source, "tenant": self.tenant}

    def accepts_type(self, type_: str) -> bool:
        """Whether the source's `types` include this type."""
        return self.types is None or any(pattern.fullmatch(type_) for pattern in self.types)


def _optional(expression: str | Sequence[str] | None, *, names: bool = True) -> Find | None:
    return None if expression is None else compile_expression(expression, names=names)


def with_tenant(tenant: str, find: Find | None) -> Find | None:
    """A function that finds the serial key with the tenant in front, so that tenants never wait for each other.

    A source with tenants does the same with its own events, whose tenant is empty: no key of theirs is one of a tenant.
    """
    if find is None:
        return None

    def find_key(parsed: Any, headers: Headers) -> str | None:
        key = find(parsed, headers)
        return None if key is None else f"{tenant}/{key}"

    return find_key
