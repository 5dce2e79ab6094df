"""Reads and verifies JSON Web Tokens of senders, and signs them for tests and samples.

Each sender has one algorithm, and a token that names another is rejected. The key name in a token's header is only used
to look up the key. Nothing in a token is trusted before its signature is verified.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from oncehook.providers.signatures import Key, algorithm, signing_key

Claims = TypeVar("Claims", bound=msgspec.Struct)
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str


_read_header = msgspec.json.Decoder(_Header).decode


@dataclass(frozen=True, slots=True)
class Token(Generic[Claims]):
    """The parts of a token. Do not trust any of them before `Tokens.is_signed_by` returns True."""

    key_name: str
    claims: Claims
    message: bytes  # the signed part: header and claims
    signature: bytes  # in the encoding of the algorithm's verifier


class Tokens(Generic[Claims]):
    """The tokens of one sender: their algorithm, the pattern of key names, and the claims."""

    def __init__(self, kind: Literal["ES256", "RS256"], *, key_names: str, claims: type[Claims], longest: int) -> None:
        self.kind = kind
        self.algorithm, self._to_verifier, self._from_signer = _KINDS[kind]
        self._key_names = re.compile(key_names, re.ASCII)
        self._read_claims = msgspec.json.Decoder(claims).decode
        self._longest = longest

    def read(self, text: bytes) -> Token[Claims]:
        """Parse a token. Raises ValueError for a text that is not a token of this sender."""
        parts = text.split(b".", 3) if len(text) <= self._longest else []
        if len(parts) != 3:
            raise ValueError("it is not a token")
        try:
            header, claims = _read_header(decode_part(parts[0])), self._read_claims(decode_part(parts[1]))
        except UNREADABLE:
            raise ValueError("it is not a token of this sender") from None
        if header.alg != self.kind or not self._key_names.fullmatch(header.kid):
            raise ValueError("it names another algorithm, or no valid key")
        return Token(header.kid, claims, parts[0] + b"." + parts[1], self._to_verifier(decode_part(parts[2])))

    def is_signed_by(self, key: Key, token: Token[Claims]) -> bool:
        """Whether the signature of the token verifies with this key."""
        return algorithm(self.algorithm).verify(key, token.message, (token.signature.hex().encode(),), "hex")

    def sign(self, secret: str, key_name: str, claims: Mapping[str, Any]) -> bytes:
        """A token with these claims, signed with a private key. Raises ValueError for a key of another kind."""
        message = signing_input({"alg": self.kind, "kid": key_name, "typ": "JWT"}, claims)
        raw = algorithm(self.algorithm).sign(signing_key(self.algorithm, secret, "public"), message)
        return message + b"." + encode(self._from_signer(raw))


def signing_input(header: Mapping[str, Any], claims: Mapping[str, Any]) -> bytes:
    """The signed part of a token: header and claims."""
    return b".".join(encode(msgspec.json.encode(part)) for part in (header, claims))


# -- encodings ------------------------------------------------------------------------------------------------------


def decode_part(part: bytes) -> bytes:
    """Decode a part of a token. Raises ValueError unless it is spelled exactly as `encode` spells it."""
    try:
        raw = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
    if encode(raw) != part:
        raise ValueError("it is not canonical base64url")
    return raw


def encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def to_der(raw: bytes) -> bytes:
    """Convert an ES256 signature, two numbers of 32 bytes, to the DER encoding that `cryptography` verifies."""
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    if len(raw) != 64:
        raise ValueError("the signature is not 64 bytes long")
    return encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))


def from_der(der: bytes) -> bytes:
    """Convert a DER signature back to two numbers of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    return b"".join(number.to_bytes(32) for number in decode_dss_signature(der))


def _unchanged(raw: bytes) -> bytes:
    return raw


_KINDS: dict[str, tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "ES256": ("ecdsa-p256-sha256", to_der, from_der),
    "RS256": ("rsa-sha256", _unchanged, _unchanged),
}


# -- keys -----------------------------------------------------------------------------------------------------------

NOT_A_KEY = (msgspec.MsgspecError, RecursionError, AttributeError, KeyError, TypeError, UnicodeError)


def load_p256_key(table: Any) -> Key:
    """The public key of a JWK on P-256. Raises ValueError for another kind of key, or one of NOT_A_KEY."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if (table["kty"], table["crv"], table.get("alg", "ES256")) != ("EC", "P-256", "ES256"):
        raise ValueError("it is another kind of key; ECDSA on P-256 is needed")
    x, y = (int.from_bytes(decode_part(table[name].encode())) for name in ("x", "y"))
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()


def load_rsa_key(table: Any) -> Key:
    """The public key of an RSA JWK. Raises ValueError for a key that is too short, or one of NOT_A_KEY."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    n, e = (int.from_bytes(decode_part(table[name].encode())) for name in ("n", "e"))
    key = RSAPublicNumbers(e, n).public_key()
    if key.key_size < 2048:
        raise ValueError("the key is shorter than 2048 bits")
    return key
