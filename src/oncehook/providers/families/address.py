"""Signatures that cover the public address, which senders spell in several ways.

Twilio signs the address with or without its port. HubSpot decodes some escapes first. For a JSON body, Twilio adds the
SHA-256 of the body as the last query parameter, and signs the address with it.
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
    """A template check that tries each spelling of the address.

    Without a `public_url`, it uses the address that a listed proxy reported. A delivery without an address never
    matches.
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
            raise Rejected("malformed", "a header of the signature is repeated")
        signatures, stamp = self.find(delivery, body)
        if not signatures or not self._body_is_covered(delivery, body):
            return None
        for message in self._messages(delivery, body, stamp):
            for index, key in self.keys:
                if self.verify(key, message, signatures, self.encoding):
                    return index, stamp
        return None

    def _fills_for(self, address: str) -> Sequence[Fill]:
        if not address:
            return ()
        spellings = with_and_without_port(address) if self.ports else [address]
        return [Template(self.template, spelling.encode()).fill for spelling in spellings]

    def _messages(self, delivery: Delivery, body: Body, stamp: bytes | None) -> list[bytes]:
        fills = self.fills or self._fills_for(delivery.address)
        messages = [fill(delivery, body, stamp) for fill in fills]
        if self.decodes and b"%" in delivery.query and len(delivery.query) <= LONGEST_QUERY:
            decoded = Delivery(delivery.body, method=delivery.method, query=decode_escapes(delivery.query))
            messages += [fill(decoded, body, stamp) for fill in fills]
        return [message for message in messages if message is not None]

    def _body_is_covered(self, delivery: Delivery, body: Body) -> bool:
        """Whether the last query parameter is the hash of this body, if the definition requires a hash.

        Twilio signs a form without a separator between address and fields. So an attacker can move fields of a signed
        form into the address, where a field may contain the hash parameter. But that parameter is then not the last.
        """
        if self.hashed_in is None:
            return True
        query = parameters(delivery.query)
        if body.is_form() or [name for name, _ in query].count(self.hashed_in) != 1:
            return False
        name, value = query[-1]
        expected = hashlib.sha256(delivery.body).hexdigest()
        return name == self.hashed_in and value.isascii() and hmac.compare_digest(expected, value.lower())


class AddressFamily(TemplateFamily):
    """A signature over a template with the public address."""

    options: Mapping[str, object] = {"public_url": "https://example.com/webhooks/here"}

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return AddressCheck(signature, provider.timestamp, keys, context.settings.public_url or "")


FAMILY = AddressFamily()


def parameters(query: bytes) -> list[tuple[str, str]]:
    """The parameters of a query string. Empty if it is too long or has too many parameters."""
    if len(query) > LONGEST_QUERY:
        return []
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return []


def with_and_without_port(url: str) -> list[str]:
    """The address unchanged, and the address without its port, or with the default port if it has none."""
    parts = split_url(url)
    if parts is None:
        return [url]
    scheme, host, port, rest = parts
    other = "" if port else f":{USUAL_PORTS[scheme]}"
    return [url, f"{scheme}://{host}{other}{rest}"]


def decode_escapes(query: bytes) -> bytes:
    """Decode the escapes that HubSpot decodes before it signs."""
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1].upper()], query)
