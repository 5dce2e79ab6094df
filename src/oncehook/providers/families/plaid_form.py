"""The form of Plaid: a token (JWT) over the hash of the body, under a key that is asked for by its name.

The algorithm is fixed, whatever the token says; of its header only the name of the key is used, and that only to ask
Plaid's own host.
"""

import base64
import binascii
import hashlib
import hmac
import re
from typing import Any

import msgspec

from oncehook.providers.certificates import Wanted
from oncehook.providers.signatures import Key

HEADER = b"plaid-verification"
_KEY_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_LONGEST = 4096


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str


class _Claims(msgspec.Struct, frozen=True):
    iat: int
    request_body_sha256: str


_read_header = msgspec.json.Decoder(_Header).decode
_read_claims = msgspec.json.Decoder(_Claims).decode


class Token:
    """A token taken apart. Nothing in it is to be believed before `signature` verifies over `message`."""

    def __init__(self, text: bytes) -> None:
        """Raises ValueError for what is not such a token."""
        first, second, third = text.split(b".") if len(text) <= _LONGEST else (b"",) * 3
        try:
            header, claims = _read_header(decode_part(first)), _read_claims(decode_part(second))
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise ValueError("it is not a token of Plaid") from None
        if header.alg != "ES256" or not _KEY_NAME.fullmatch(header.kid):
            raise ValueError("it names another algorithm, or no key")
        self.key_name = header.kid
        self.issued = str(claims.iat).encode()
        self.message = first + b"." + second
        self.signature = _der(decode_part(third))
        self._digest = claims.request_body_sha256

    def covers(self, body: bytes) -> bool:
        found = hashlib.sha256(body).hexdigest()
        return self._digest.isascii() and hmac.compare_digest(found, self._digest)


def decode_part(part: bytes) -> bytes:
    """A part of a token. Raises ValueError for any other spelling than the one that `encode` gives."""
    try:
        raw = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
    if encode(raw) != part:
        raise ValueError("it is not base64 as tokens have it")
    return raw


def encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _der(raw: bytes) -> bytes:
    """The two halves of a token's signature as `cryptography` takes them."""
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    if len(raw) != 64:
        raise ValueError("the signature has another length")
    return encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))


def unsigned(key_name: str, issued: int, body: bytes) -> bytes:
    """The part of a token that is signed."""
    header = {"alg": "ES256", "kid": key_name, "typ": "JWT"}
    claims = {"iat": issued, "request_body_sha256": hashlib.sha256(body).hexdigest()}
    return b".".join(encode(msgspec.json.encode(part)) for part in (header, claims))


def halves(der: bytes) -> bytes:
    """The other direction of `_der`."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    return b"".join(number.to_bytes(32) for number in decode_dss_signature(der))


# -- keys -----------------------------------------------------------------------------------------------------------


def load_jwk(content: bytes | str) -> Key:
    """A public key on P-256 out of a JWK, by itself or as Plaid answers. Raises ValueError for any other."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        table: Any = msgspec.json.decode(content)
        table = table.get("key", table)
        if (table["kty"], table["crv"], table.get("alg", "ES256")) != ("EC", "P-256", "ES256"):
            raise ValueError("it is a key of another kind; ECDSA on P-256 is needed")
        if table.get("expired_at") is not None:
            raise ValueError("it is a key that has expired")
        x, y = (int.from_bytes(decode_part(table[name].encode())) for name in ("x", "y"))
        return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    except (msgspec.MsgspecError, RecursionError, AttributeError, KeyError, TypeError, UnicodeError):
        raise ValueError("it is not a key (JWK)") from None


def name_of(content: str) -> str | None:
    """The name that a JWK gives itself."""
    try:
        table: Any = msgspec.json.decode(content)
        name = table.get("key", table).get("kid")
    except (msgspec.MsgspecError, RecursionError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def wanted(key_name: str, credentials: str, *, sandbox: bool) -> Wanted:
    """How to ask Plaid for the key of a name: `credentials` are client_id:secret."""
    host = "sandbox.plaid.com" if sandbox else "production.plaid.com"
    client, _, secret = credentials.partition(":")
    content = msgspec.json.encode({"client_id": client, "secret": secret, "key_id": key_name})
    return Wanted(kept_as(key_name, host), f"https://{host}/webhook_verification_key/get", content, load_jwk)


def kept_as(key_name: str, host: str) -> str:
    return f"{host}#{key_name}"
