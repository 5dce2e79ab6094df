"""Braintree: XML in base64 in a form, under HMAC-SHA1 with the hash of the private key.

The challenge of its handshake is signed with the same key. So it is only answered where it could never be a payload:
hexadecimal digits decode from base64 to no XML.
"""

import base64
import hashlib
import hmac
import re
import secrets
from urllib.parse import parse_qs, urlencode

from oncehook.model.delivery import Delivery
from oncehook.providers import key_pairs
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.handshake import TEXT, HandshakeKind, HandshakeRequest, HandshakeResponse
from oncehook.providers.key_pairs import Pair
from oncehook.providers.template import Body
from oncehook.providers.xml import read_xml

MOST_PAIRS = 32
_SIGNATURE, _PAYLOAD = (("bt_signature",),), (("bt_payload",),)


def load_key(secret: str) -> tuple[bytes, bytes]:
    """(public key, what signs) out of `public|private`. Raises ValueError, without the value."""
    public, _, private = secret.strip().partition("|")
    if not public.strip() or not private.strip():
        raise ValueError("it is not public_key|private_key")
    try:
        return public.encode("ascii"), hashlib.sha1(private.encode("ascii")).digest()  # noqa: S324  # theirs, for HMAC
    except UnicodeEncodeError:
        raise ValueError("it is not public_key|private_key") from None


def sign(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha1").hex().encode()


def signature_of(public: bytes, pairs: bytes) -> bytes | None:
    """The signature beside this public key in `public|signature&…`, if there is exactly one."""
    found = []
    for pair in pairs.split(b"&", MOST_PAIRS):
        name, _, signature = pair.partition(b"|")
        if name == public:
            found.append(signature)
    return found[0] if len(found) == 1 else None


class BraintreeCheck:
    """The signature beside the source's public key is that of the payload, or of the payload and a line's end."""

    stamped = False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        pairs, payload = body.at(_SIGNATURE), body.at(_PAYLOAD)
        if pairs is None or payload is None:
            return None
        for index, (public, key) in self.keys:
            given = signature_of(public, pairs)
            if given is not None and any(
                hmac.compare_digest(sign(key, message), given) for message in (payload, payload + b"\n")
            ):
                return index, None
        return None


async def _answer_challenge(exchange: HandshakeRequest) -> HandshakeResponse:
    challenge = exchange.challenge()
    public, key = exchange.key()
    return 200, public + b"|" + sign(key, challenge.encode()), TEXT


class BraintreeFamily(Family):
    """Braintree. The secret is public_key|private_key."""

    handshake = HandshakeKind(
        "its challenge is sent back signed",
        _answer_challenge,
        signs=re.compile(r"[a-f0-9]{20,32}", re.ASCII),
        read_event=read_xml,
    )

    def load_key(self, signature: Signature, secret: str) -> tuple[bytes, bytes]:
        return load_key(secret)

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return BraintreeCheck(keys)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        """The body may be the XML, or the form that holds it."""
        public, key = load_key(secret)
        fields = parse_qs(unsigned.body.decode("utf-8", "replace"))
        payload = fields["bt_payload"][0] if "bt_payload" in fields else base64.b64encode(unsigned.body).decode() + "\n"
        value = (public + b"|" + sign(key, payload.encode())).decode()
        body = urlencode({"bt_signature": value, "bt_payload": payload}).encode()
        return {**unsigned.headers, "Content-Type": CONTENT_TYPE}, body

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.shared(f"{secrets.token_hex(8)}|{secrets.token_hex(16)}")

    def signed_content(self, signature: Signature, delivery: Delivery, body: Body) -> bytes:
        """The payload: the signature is taken with and without its line end, and other fields are not signed."""
        return (body.at(_PAYLOAD) or delivery.body).removesuffix(b"\n")


FAMILY = BraintreeFamily()
