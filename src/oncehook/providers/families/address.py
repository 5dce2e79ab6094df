"""A signature that covers the public address, which senders spell in more than one way.

Twilio signs the address with or without its port. HubSpot decodes some of its escapes first. A JSON body is covered by
Twilio through the last parameter of the address, which is its SHA-256.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.definition import Provider, Signature, Timestamp
from oncehook.providers.families.template import TemplateCheck, TemplateFamily
from oncehook.providers.family import Check, CheckContext, Keys, Match
from oncehook.providers.forwarded_address import USUAL_PORTS, split_url
from oncehook.providers.template import Body, Fill, Template

LONGEST_QUERY = 8192
_ESCAPES = {b"3A": b":", b"2F": b"/", b"3F": b"?", b"40": b"@", b"21": b"!", b"24": b"$"}
_ESCAPES |= {b"27": b"'", b"28": b"(", b"29": b")", b"2A": b"*", b"2C": b",", b"3B": b";"}
_ESCAPE = re.compile(rb"%(" + b"|".join(_ESCAPES) + rb")", re.IGNORECASE)


class AddressCheck(TemplateCheck):
    """A template check whose message is tried with each spelling of the address.

    Without a `public_url` it is the address that a listed proxy said; a delivery without one matches nothing.
    """

    def __init__(self, signature: Signature, timestamp: Timestamp | None, keys: Keys, public_url: str) -> None:
        super().__init__(signature, timestamp, keys)
        self.template = signature.template
        self.ports = signature.url == "ports"
        self.fills = self._fills_for(public_url.partition("?")[0])
        self.decodes = signature.url == "decoded"
        self.hashed_in = signature.digest

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not self.guarded.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature came twice")
        given, stamp = self.find(delivery, body)
        if not given or not self._body_is_covered(delivery, body):
            return None
        for message in self._messages(delivery, body, stamp):
            for index, key in self.keys:
                if self.verify(key, message, given, self.encoding):
                    return index, stamp
        return None

    def _fills_for(self, address: str) -> Sequence[Fill]:
        if not address:
            return ()
        spellings = with_and_without_port(address) if self.ports else [address]
        return [Template(self.template, spelling.encode()).fill for spelling in spellings]

    def _messages(self, delivery: Delivery, body: Body, stamp: bytes | None) -> list[bytes]:
        fills = self.fills or self._fills_for(delivery.address)
        found = [fill(delivery, body, stamp) for fill in fills]
        if self.decodes and b"%" in delivery.query and len(delivery.query) <= LONGEST_QUERY:
            decoded = Delivery(delivery.body, method=delivery.method, query=decode_escapes(delivery.query))
            found += [fill(decoded, body, stamp) for fill in fills]
        return [message for message in found if message is not None]

    def _body_is_covered(self, delivery: Delivery, body: Body) -> bool:
        """Where the address must end with the body's hash: that it does, and that it is this body's.

        Twilio signs a form without anything between address and fields. So the signature of a form is also that of an
        address into which its fields were moved, and a field may hold a parameter: not the last one, though.
        """
        if self.hashed_in is None:
            return True
        given = parameters(delivery.query)
        if body.is_form() or [name for name, _ in given].count(self.hashed_in) != 1:
            return False
        name, value = given[-1]
        found = hashlib.sha256(delivery.body).hexdigest()
        return name == self.hashed_in and value.isascii() and hmac.compare_digest(found, value.lower())


class AddressFamily(TemplateFamily):
    """A template that holds the public address."""

    options: Mapping[str, object] = {"public_url": "https://example.com/webhooks/here"}

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return AddressCheck(signature, provider.timestamp, keys, context.settings.public_url or "")


FAMILY = AddressFamily()


def parameters(query: bytes) -> list[tuple[str, str]]:
    """The parameters of an address; none if it has too many, or is longer than any that is registered."""
    if len(query) > LONGEST_QUERY:
        return []
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return []


def with_and_without_port(url: str) -> list[str]:
    """The address as it is, and with its port left out, or its usual port put in."""
    parts = split_url(url)
    if parts is None:
        return [url]
    scheme, host, port, rest = parts
    other = "" if port else f":{USUAL_PORTS[scheme]}"
    return [url, f"{scheme}://{host}{other}{rest}"]


def decode_escapes(query: bytes) -> bytes:
    """The query with those escapes decoded that HubSpot decodes before it signs."""
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1].upper()], query)
