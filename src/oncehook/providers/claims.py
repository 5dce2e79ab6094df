"""Reads the events out of a verified delivery: one claim each, with its id, type, object and time.

`read` never raises for an authentic body. A body that cannot be used becomes a failed receipt under the hash of its
bytes, so that a provider that changes its shape loses no event.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from oncehook.config.settings import SourceSettings
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.patterns import compile_pattern
from oncehook.model.states import State
from oncehook.providers import cloudevents
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
    headers_of,
    index_text,
    made_for,
    parse,
    parse_time,
    split,
)
from oncehook.providers.handshake import kind_of
from oncehook.providers.stored_headers import StoredNames, headers_json
from oncehook.providers.template import Body
from oncehook.providers.xml import read_xml


class ClaimReader:
    """Reads the deliveries of one source. The expressions of its provider's definition are compiled at start-up."""

    def __init__(self, source: str, provider: Provider, settings: SourceSettings) -> None:
        """Raises ConfigurationError for an expression in `settings` that cannot be used."""
        where = f"sources.{source}"
        self.source = source
        self.provider = provider
        self.provider_name = provider.name
        self.is_inline = settings.mode == "inline"
        self.first_state = State.PROCESSING if self.is_inline else State.RECEIVED
        self.types = None if settings.types is None else [compile_pattern(pattern) for pattern in settings.types]
        self.signed_kinds = [kind_of(one.kind) for one in provider.handshakes if one.is_keyed]
        self._compile_facts(settings, where)
        self.find_serial = self._serial(settings, where)

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
        self.made = made_for(settings.id or facts.id)
        self.kinds = [(compile_expression(locator), types) for locator, types in facts.kinds.items()]
        self.not_events = [parse(text.encode()) for text in facts.not_events]
        self.split = facts.split
        self.single = facts.single
        self.cloudevents = "cloudevents" in self.provider.content
        self.only_json = self.provider.content == ("json",)
        self.volatile = tuple(tuple(path.split(".")) for path in facts.volatile)
        found = (settings.id or facts.id, facts.type, facts.object, facts.occurred_at, facts.delivery_id, *facts.kinds)
        needed = [headers_of(one) for one in (*found, settings.correlation, settings.serial_by) if one is not None]
        self.kept_names = self._kept_names(set().union(*needed))
        self.naming = headers_of(settings.id or facts.id) | headers_of(facts.type)

    def _kept_names(self, needed: set[bytes]) -> StoredNames:
        """Which headers are stored with an event: never the signature."""
        alternatives = [(signature.family, signature) for signature in self.provider.signatures]
        headers = (family.signature_header(signature) for family, signature in alternatives)
        dropped = {header.lower().encode() for header in headers if header}
        signed = set().union(*(family.signed_headers(signature) for family, signature in alternatives))
        return StoredNames(dropped=dropped, needed=needed | (signed - dropped))

    def _serial(self, settings: SourceSettings, where: str) -> Find | None:
        """Where the key is by which events take turns, or None if they do not."""
        if settings.serial_by is None:
            return None
        if self.is_inline:
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
        event_id = index_text(self.find_id(parsed, named))
        kind = self._kind(parsed, delivery.headers) if self.kinds else None
        type_ = index_text(kind or self.find_type(parsed, delivery.headers))
        keys = self._unique(parsed, delivery.headers) if self.find_unique else ()
        if event_id is None or type_ is None:
            missing = "id" if event_id is None else "type"
            error = f"the body has no usable {missing} where {self.provider_name} has it"
            return self._unusable(body, content, headers, error, type_=type_, keys=keys)
        return Claim(
            source=self.source,
            provider=self.provider_name,
            event_id=event_id,
            type=type_,
            object_id=index_text(self.find_object(parsed, delivery.headers)) if self.find_object else None,
            occurred_at=parse_time(self.find_occurred(parsed, delivery.headers)) if self.find_occurred else None,
            delivery_id=index_text(self.find_delivery(parsed, delivery.headers)) if self.find_delivery else None,
            correlation_id=self._correlation(parsed, delivery),
            status=self.first_state if self.types is None or self.takes(type_) else State.IGNORED,
            fingerprint=digest,
            body=body,
            headers=headers,
            serial_key=index_text(self.find_serial(parsed, delivery.headers)) if self.find_serial else None,
            keys=keys,
        )

    def _unique(self, parsed: Any, headers: Headers) -> tuple[str, ...]:
        """The event's `unique` facts that are there, each told from the others by its number."""
        found = [(number, find(parsed, headers)) for number, find in enumerate(self.find_unique)]
        return tuple(index_text(f"{number}:{value}") or "" for number, value in found if value)

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
        return index_text(found)

    def _kept_headers(self, delivery: Delivery, *, content_type: bytes | None = None) -> str:
        is_kept = self.kept_names
        kept = [pair for pair in delivery.headers.items() if is_kept[pair[0]]]
        if content_type is not None:
            kept = [(name, content_type if name == b"content-type" else value) for name, value in kept]
        return headers_json(tuple(kept))

    def takes(self, type_: str) -> bool:
        """Whether the allow-list has this type."""
        return self.types is None or any(pattern.fullmatch(type_) for pattern in self.types)


def _optional(expression: str | Sequence[str] | None, *, names: bool = True) -> Find | None:
    return None if expression is None else compile_expression(expression, names=names)
