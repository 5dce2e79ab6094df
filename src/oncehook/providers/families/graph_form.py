"""The tokens of Microsoft Graph: notifications with resource data carry them beside clientState.

A token is signed by Microsoft's identity platform, under a key that it publishes; it must be for this application and
come from the application that sends change notifications.
"""

import re
from functools import partial
from typing import Any

import msgspec

from oncehook.providers.certificates import Wanted
from oncehook.providers.families.plaid_form import decode_part
from oncehook.providers.signatures import Key

SENDER = "0bf30f3b-4a52-48df-9a82-234910c4a086"
KEYS = "https://login.microsoftonline.com/common/discovery/v2.0/keys"
LEEWAY = 300
MOST_TOKENS = 32
_KEY_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_TENANT = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ISSUER = re.compile(rf"https://(?:login\.microsoftonline\.com/{_TENANT}/v2\.0|sts\.windows\.net/{_TENANT}/)", re.ASCII)
_LONGEST = 16 * 1024


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str


class _Claims(msgspec.Struct, frozen=True):
    aud: str
    iss: str
    exp: int
    nbf: int = 0
    azp: str = ""
    appid: str = ""


_read_header = msgspec.json.Decoder(_Header).decode
_read_claims = msgspec.json.Decoder(_Claims).decode


class Token:
    """A token taken apart. Nothing in it is to be believed before `signature` verifies over `message`."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for what is not such a token."""
        parts = text.encode("utf-8", "surrogatepass").split(b".", 3) if len(text) <= _LONGEST else []
        if len(parts) != 3:
            raise ValueError("it is not a token")
        try:
            header, self.claims = _read_header(decode_part(parts[0])), _read_claims(decode_part(parts[1]))
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise ValueError("it is not a token of Microsoft") from None
        if header.alg != "RS256" or not _KEY_NAME.fullmatch(header.kid):
            raise ValueError("it names another algorithm, or no key")
        self.key_name = header.kid
        self.message = parts[0] + b"." + parts[1]
        self.signature = decode_part(parts[2])

    def is_for(self, app_id: str, now: float) -> bool:
        """Whether it is for this application, from the sender of notifications, and of now."""
        claims = self.claims
        sent_by = claims.azp or claims.appid
        in_time = claims.nbf - LEEWAY <= now <= claims.exp + LEEWAY
        return claims.aud == app_id and sent_by == SENDER and bool(_ISSUER.fullmatch(claims.iss)) and in_time


def wanted(key_name: str) -> Wanted:
    """How to have the key of a name."""
    return Wanted(f"{KEYS}#{key_name}", KEYS, load=partial(load_key, key_name))


def load_key(key_name: str, content: bytes) -> Key:
    """The key of a name out of those that Microsoft publishes. Raises ValueError if it is not among them."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    try:
        tables: Any = msgspec.json.decode(content)["keys"]
        table = next(table for table in tables if table["kid"] == key_name and table["kty"] == "RSA")
        n, e = (int.from_bytes(decode_part(table[name].encode())) for name in ("n", "e"))
        key = RSAPublicNumbers(e, n).public_key()
    except (msgspec.MsgspecError, RecursionError, AttributeError, KeyError, TypeError, UnicodeError, StopIteration):
        raise ValueError("the key is not among those that are published") from None
    if key.key_size < 2048:
        raise ValueError("the key is too short")
    return key
