"""HTTP basic authentication."""

import base64
import binascii
import hmac

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.families import Keys, Match
from oncehook.providers.signatures import Key, to_bytes
from oncehook.providers.template import Body


def load_key(secret: str) -> Key:
    """Raises ValueError, without the value."""
    user, _, password = secret.partition(":")
    if not (user.strip() and password.strip()):
        raise ValueError("it is not user:password")
    return to_bytes(secret)


class BasicCheck:
    """HTTP basic authentication: nothing is signed, whoever has the password may post."""

    stamped = False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if b"authorization" in delivery.repeated:
            raise Rejected("malformed", "a header of the signature came twice")
        scheme, _, encoded = delivery.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"basic":
            return None
        try:
            given = base64.b64decode(encoded.strip(b" "), validate=True)
        except binascii.Error:
            return None
        return next(((index, None) for index, key in self.keys if hmac.compare_digest(key, given)), None)
