"""Braintree: HMAC-SHA1, with the hash of the private key, over XML in base64 in a form.

The response to its handshake signs the challenge with the same key. So Oncehook only answers challenges that can never
be a payload: hexadecimal digits, which do not decode from base64 to XML.
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

MAX_PAIRS = 32
_SIGNATURE, _PAYLOAD = (("bt_signature",),), (("bt_payload",),)


def load_key(secret: str) -> tuple[bytes, bytes]:
    """The public key and the HMAC key of `public|private`. Raises ValueError, which never quotes the secret."""
    public, _, private = secret.strip().partition("|")
    if not public.strip() or not private.strip():
        raise ValueError("it is not public_key|private_key")
    try:
        return public.encode("ascii"), hashlib.sha1(private.encode("ascii")).digest()  # noqa: S324  # Braintree derives its HMAC key with SHA-1
    except UnicodeEncodeError:
        raise ValueError("it is not public_key|private_key") from None


def sign(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha1").hex().encode()


def signature_of(public: bytes, pairs: bytes) -> bytes | None:
    """The signature of this public key in `public|signature&…`, if there is exactly one."""
    signatures = []
    for pair in pairs.split(b"&", MAX_PAIRS):
        name, _, signature = pair.partition(b"|")
        if name == public:
            signatures.append(signature)
    return signatures[0] if len(signatures) == 1 else None


class BraintreeCheck:
    """Verifies the signature of the source's public key over the payload, with or without a trailing line break."""

    stamped = False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        pairs, payload = body.at(_SIGNATURE), body.at(_PAYLOAD)
        if pairs is None or payload is None:
            return None
        for index, (public, key) in self.keys:
            signature = signature_of(public, pairs)
            if signature is not None and any(
                hmac.compare_digest(sign(key, message), signature) for message in (payload, payload + b"\n")
            ):
                return index, None
        return None


async def _answer_challenge(request: HandshakeRequest) -> HandshakeResponse:
    challenge = request.challenge()
    public, key = request.key()
    return 200, public + b"|" + sign(key, challenge.encode()), TEXT


class BraintreeFamily(Family):
    """Braintree. The secret is public_key|private_key."""

    handshake = HandshakeKind(
        "Oncehook sends the challenge back, signed",
        _answer_challenge,
        signs=re.compile(r"[a-f0-9]{20,32}", re.ASCII),
        read_event=read_xml,
    )

    def load_key(self, signature: Signature, secret: str) -> tuple[bytes, bytes]:
        return load_key(secret)

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return BraintreeCheck(keys)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        """Sign a body that is the XML, or the form that holds it."""
        public, key = load_key(secret)
        fields = parse_qs(unsigned.body.decode("utf-8", "replace"))
        payload = fields["bt_payload"][0] if "bt_payload" in fields else base64.b64encode(unsigned.body).decode() + "\n"
        value = (public + b"|" + sign(key, payload.encode())).decode()
        body = urlencode({"bt_signature": value, "bt_payload": payload}).encode()
        return {**unsigned.headers, "Content-Type": CONTENT_TYPE}, body

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.shared(f"{secrets.token_hex(8)}|{secrets.token_hex(16)}")

    def signed_content(self, signature: Signature, delivery: Delivery, body: Body) -> bytes:
        """The payload without its line break: a signature is valid with and without it, and covers no other field."""
        return (body.at(_PAYLOAD) or delivery.body).removesuffix(b"\n")


FAMILY = BraintreeFamily()
