"""HTTP basic authentication: nothing is signed, and anyone who has the password can post."""

import base64
import binascii
import hmac
import secrets

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import key_pairs
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key, to_bytes
from oncehook.providers.template import Body


class BasicCheck:
    """Compares user and password of the request with the secrets of the source."""

    stamped = False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if b"authorization" in delivery.repeated:
            raise Rejected("malformed", "a header of the signature is repeated")
        scheme, _, encoded = delivery.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"basic":
            return None
        try:
            password = base64.b64decode(encoded.strip(b" "), validate=True)
        except binascii.Error:
            return None
        return next(((index, None) for index, key in self.keys if hmac.compare_digest(key, password)), None)


class BasicFamily(Family):
    """HTTP basic authentication. The secret is user:password."""

    def load_key(self, signature: Signature, secret: str) -> Key:
        user, _, password = secret.partition(":")
        if not (user.strip() and password.strip()):
            raise ValueError("it is not user:password")
        return to_bytes(secret)

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return BasicCheck(keys)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        password = "Basic " + base64.b64encode(secret.encode()).decode()
        return {**unsigned.headers, "Authorization": password}, unsigned.body

    def make_pair(self, signature: Signature) -> Pair:
        password = f"{secrets.token_urlsafe(12)}:{secrets.token_urlsafe(12)}"  # a password may hold a colon
        return key_pairs.shared(f"user:{password}")

    def signature_header(self, signature: Signature) -> str:
        return "Authorization"

    def sends_secret(self, signature: Signature) -> bool:
        return True


FAMILY = BasicFamily()
