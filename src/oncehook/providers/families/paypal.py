"""PayPal: RSA over headers and the CRC-32 of the body, with a pinned key or the certificate that the headers name.

The signature covers only the CRC-32 of the body. It also covers the id of the webhook, which is not in the request: it
is a setting of the source. Live and sandbox have different hosts, and a source accepts certificates of one only.
"""

import re
from collections.abc import Mapping
from zlib import crc32

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import key_pairs
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.expressions import Headers, iso_time, parse_time
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key, algorithm, encode, signing_key
from oncehook.providers.template import Body

SIGNATURE, ALGORITHM, CERTIFICATE = b"paypal-transmission-sig", b"paypal-auth-algo", b"paypal-cert-url"
ID, TIME = b"paypal-transmission-id", b"paypal-transmission-time"
SIGNED = frozenset({SIGNATURE, ALGORITHM, CERTIFICATE, ID, TIME})
EXAMPLE_CERTIFICATE = "https://api.paypal.com/v1/notifications/certs/CERT-example"
_NAME = r"/v1/notifications/certs/CERT-[A-Za-z0-9-]{1,100}"
_LIVE = re.compile(r"https://api\.paypal\.com" + _NAME, re.ASCII)
_SANDBOX = re.compile(r"https://api\.sandbox\.paypal\.com" + _NAME, re.ASCII)


def signed_message(headers: Headers, body: bytes, webhook_id: str) -> bytes | None:
    """The message that PayPal signs. None if a part is missing, or contains the separator."""
    transmission, time = headers.get(ID), headers.get(TIME)
    if not transmission or not time or b"|" in transmission + time:
        return None
    return b"%s|%s|%s|%d" % (transmission, time, webhook_id.encode(), crc32(body))


def certificate_url(headers: Headers, *, sandbox: bool) -> str | None:
    """The address of the signing certificate, if it is PayPal's."""
    url = headers.get(CERTIFICATE, b"").decode("latin-1")
    return url if (_SANDBOX if sandbox else _LIVE).fullmatch(url) else None


class PayPalCheck:
    """Verifies RSA-SHA256 over the transmission's id and time, the webhook's id and the CRC-32 of the body."""

    stamped = True
    guarded = SIGNED

    def __init__(self, keys: Keys, context: CheckContext) -> None:
        self.keys = keys
        self.fetches = not keys
        self.webhook_id = context.settings.webhook_id or ""
        self.sandbox = context.settings.sandbox
        self.certificates = context.certificates
        self.verify = algorithm("rsa-sha256").verify

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not SIGNED.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature is repeated")
        message = self._message(delivery)
        if message is None:
            return None
        signatures = (delivery.headers[SIGNATURE],)
        for index, key in self.keys or self._fetched_keys(delivery):
            if self.verify(key, message, signatures, "base64"):
                return index, delivery.headers[TIME]
        return None

    def key_to_fetch(self, delivery: Delivery, body: Body) -> str | None:
        if self.keys or self._message(delivery) is None:
            return None
        return certificate_url(delivery.headers, sandbox=self.sandbox)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return delivery.headers.get(TIME)

    def _message(self, delivery: Delivery) -> bytes | None:
        if delivery.headers.get(ALGORITHM) != b"SHA256withRSA" or SIGNATURE not in delivery.headers:
            return None
        return signed_message(delivery.headers, delivery.body, self.webhook_id)

    def _fetched_keys(self, delivery: Delivery) -> Keys:
        url = certificate_url(delivery.headers, sandbox=self.sandbox)
        certificate = self.certificates.get(url) if url else None
        signed = parse_time(delivery.headers[TIME].decode("latin-1"))
        if certificate is None or signed is None:
            return ()
        if not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return ()
        return ((0, certificate.public_key()),)


class PayPalFamily(Family):
    """PayPal. The secret, if any, is a pinned certificate or public key."""

    options: Mapping[str, object] = {"webhook_id": "8PT597110X687430LKGECATA"}
    fetches_key = True

    def load_key(self, signature: Signature, secret: str) -> Key:
        return algorithm("rsa-sha256").load(secret, "public")

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return PayPalCheck(keys, context)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        names = {"PAYPAL-CERT-URL": EXAMPLE_CERTIFICATE, "PAYPAL-AUTH-ALGO": "SHA256withRSA"}
        headers = {name.upper(): value for name, value in unsigned.headers.items()}
        headers = {**names, **headers, "PAYPAL-TRANSMISSION-TIME": iso_time(unsigned.now)}
        lower = {name.lower().encode(): value.encode() for name, value in headers.items()}
        message = signed_message(lower, unsigned.body, unsigned.settings.webhook_id or "")
        if message is None:
            raise ValueError("the header PAYPAL-TRANSMISSION-ID is missing, and the signature covers it")
        raw = algorithm("rsa-sha256").sign(signing_key("rsa-sha256", secret, "public"), message)
        return {**headers, "PAYPAL-TRANSMISSION-SIG": encode(raw, "base64").decode()}, unsigned.body

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.rsa()

    def shares_secret(self, signature: Signature) -> bool:
        return False

    def signature_header(self, signature: Signature) -> str:
        return "PAYPAL-TRANSMISSION-SIG"

    def signed_headers(self, signature: Signature) -> frozenset[bytes]:
        return SIGNED


FAMILY = PayPalFamily()
