"""Amazon SNS: RSA over fields of the body, with a pinned key or a fetched certificate.

The body names the address of the certificate. So the signature proves that Amazon sent the message only if the address
is Amazon's. The host must be SNS's own, with a well-formed region: `sns.s3-….amazonaws.com` is a bucket that anyone can
own. The path must be exactly the one that SNS uses. Nothing is fetched from any other address.
"""

import re
from collections.abc import Mapping
from fnmatch import translate
from typing import Any

import msgspec

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers import key_pairs
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.expressions import parse_time
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.handshake import TEXT, HandshakeKind, HandshakeRequest, HandshakeResponse
from oncehook.providers.key_pairs import Pair
from oncehook.providers.placement import json_object
from oncehook.providers.signatures import Key, algorithm, encode, signing_key
from oncehook.providers.template import Body

EXAMPLE_TOPIC = "arn:aws:sns:eu-west-1:123456789012:example"
_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
NAMES = (*dict.fromkeys(_NOTIFICATION + _CONFIRMATION), "Signature", "SignatureVersion", "SigningCertURL")
_HOST = r"https://sns\.[a-z]{2}(?:-[a-z]{2,12}){1,2}-[0-9]\.amazonaws\.com(?:\.cn)?"
_CERTIFICATE = re.compile(_HOST + r"/SimpleNotificationService-[0-9a-f]{32}\.pem", re.ASCII)
_SUBSCRIBE = re.compile(_HOST + r"/\?Action=ConfirmSubscription&[A-Za-z0-9=&:%._~-]{1,2048}", re.ASCII)


def signed_message(fields: Mapping[str, str]) -> bytes | None:
    """The message that SNS signs: `name\\nvalue\\n` in a fixed order. None if a required field is missing.

    Only `Message` may contain a line break. In another field, a line break would let the same signed bytes be read as
    different fields, and anyone who can publish to a topic could use that.
    """
    names = _SIGNED.get(fields.get("Type", ""), ())
    lines = []
    for name in names:
        value = fields.get(name)
        if value is None and name == "Subject":
            continue
        if value is None or ("\n" in value and name != "Message"):
            return None
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode("utf-8", "surrogatepass") or None


def certificate_url(fields: Mapping[str, Any]) -> str | None:
    """The address of the signing certificate, if it is SNS's."""
    url = fields.get("SigningCertURL")
    return url if isinstance(url, str) and _CERTIFICATE.fullmatch(url) else None


def subscribe_url(fields: Mapping[str, Any]) -> str | None:
    """The address that confirms a subscription, if it is SNS's."""
    url = fields.get("SubscribeURL")
    return url if isinstance(url, str) and _SUBSCRIBE.fullmatch(url) else None


def _algorithm(version: str) -> str:
    return "rsa-sha1" if version == "1" else "rsa-sha256"


class SnsCheck:
    """Verifies the signed fields of the body with a pinned key, or with the certificate that they name."""

    stamped = True

    def __init__(self, keys: Keys, context: CheckContext) -> None:
        self.keys = keys
        self.fetches = not keys
        self.certificates = context.certificates
        self.topics = [re.compile(translate(topic)) for topic in context.settings.topics]

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        fields = self._fields(body)
        message = signed_message(fields)
        if message is None:
            return None
        rsa = algorithm(_algorithm(fields["SignatureVersion"]))
        signatures = (fields["Signature"].encode("utf-8", "surrogatepass"),)
        for index, key in self.keys or self._fetched_keys(fields):
            if rsa.verify(key, message, signatures, "base64"):
                return index, fields["Timestamp"].encode("utf-8", "surrogatepass")
        return None

    def key_to_fetch(self, delivery: Delivery, body: Body) -> str | None:
        """The address of the certificate. Nothing is fetched for a message of a topic that the source does not list."""
        fields = self._fields(body)
        return None if self.keys or signed_message(fields) is None else certificate_url(fields)

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        return self._fields(body).get("Timestamp", "").encode("utf-8", "surrogatepass")

    def _fields(self, body: Body) -> Mapping[str, str]:
        """The fields of a signed message. Empty if it is malformed. Raises Rejected for a topic that is not listed."""
        fields = body.texts(NAMES) or {}
        if fields.get("SignatureVersion") not in ("1", "2") or "Signature" not in fields:
            return {}
        if not any(topic.fullmatch(fields.get("TopicArn", "")) for topic in self.topics):
            raise Rejected("bad_signature", "the topic is not one of the source's topics")
        return fields

    def _fetched_keys(self, fields: Mapping[str, str]) -> Keys:
        url = certificate_url(fields)
        certificate = self.certificates.get(url) if url else None
        signed = parse_time(fields["Timestamp"])
        if certificate is None or signed is None:
            return ()
        if not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return ()
        return ((0, certificate.public_key()),)


async def _confirm_subscription(request: HandshakeRequest) -> HandshakeResponse:
    url = subscribe_url(request.body.texts(("SubscribeURL",)) or {})
    if url is None:
        raise Rejected("malformed", "SubscribeURL is not an address of SNS")
    try:
        await request.host.certificates.fetch_counted(url)
    except OSError as error:
        raise Unavailable(f"the subscription could not be confirmed: {error}", retry_after=20) from error
    return 200, b"confirmed", TEXT


class SnsFamily(Family):
    """Amazon SNS. The secret, if any, is a pinned certificate or public key."""

    options: Mapping[str, object] = {"topics": [EXAMPLE_TOPIC]}
    fetches_key = True
    handshake = HandshakeKind(
        "Oncehook confirms the subscription",
        _confirm_subscription,
        needs_echo=False,
        must_be_signed=True,
        calls_sender=True,
    )

    def load_key(self, signature: Signature, secret: str) -> Key:
        return algorithm("rsa-sha256").load(secret, "public")

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return SnsCheck(keys, context)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        fields = {"SignatureVersion": "2", **json_object(unsigned.body)}
        message = signed_message({name: value for name, value in fields.items() if isinstance(value, str)})
        if message is None:
            raise ValueError("the body lacks a field that SNS signs")
        name = _algorithm(fields["SignatureVersion"])
        raw = algorithm(name).sign(signing_key(name, secret, "public"), message)
        fields["Signature"] = encode(raw, "base64").decode()
        return unsigned.headers, msgspec.json.encode(fields)

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.rsa()

    def shares_secret(self, signature: Signature) -> bool:
        return False

    def sample_words(self, settings: SourceSettings) -> Mapping[str, str]:
        return {"topic": settings.topics[0] if settings.topics else EXAMPLE_TOPIC}


FAMILY = SnsFamily()
