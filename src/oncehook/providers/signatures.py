"""Signature algorithms, in verify/sign pairs. Pure: bytes in, bytes or a bool out.

Every `verify` compares in constant time and returns False for whatever is not a signature; none raises.
Keys are loaded once, at start-up, and a key that cannot be used is a ValueError there, without its value.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

Key = Any
Load = Callable[[str, str], Key]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to sign: how its keys are loaded, and its two directions."""

    load: Load  # (secret as configured, form) → the key that verifies
    load_signing: Load  # (secret as configured, form) → the key that signs
    verify: Callable[[Key, bytes, Sequence[bytes], str], bool]  # key, message, signatures as sent, encoding → any?
    sign: Callable[[Key, bytes], bytes]


# -- encodings ------------------------------------------------------------------------------------------------------


def encode(raw: bytes, encoding: str) -> bytes:
    return binascii.hexlify(raw) if encoding == "hex" else binascii.b2a_base64(raw, newline=False)


def decode(text: bytes | str, encoding: str) -> bytes:
    """Strictly: raises ValueError for a foreign character or missing padding."""
    try:
        return binascii.unhexlify(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"it is not {encoding}") from None


# -- HMAC -----------------------------------------------------------------------------------------------------------

# HMAC fills its key up with zeros, so zeros are the empty key; a prefix alone is what a form left blank gives.
_BLANK = re.compile(rb"[\x00\s]*(?:wh(?:sec|pk|sk)_)?[\x00\s]*")


SHORTEST = 16
"""Bytes of a key that is encoded: senders make them random, of 24 bytes and more. A text may be a person's own."""


def load_secret(secret: str, form: str) -> bytes:
    """The bytes of a shared secret. Raises ValueError for one that is empty or not of its form."""
    if form == "text":
        key = to_bytes(secret)
    elif form == "whsec":
        text = secret.strip().removeprefix("whsec_")
        key = decode(text + "=" * (-len(text) % 4), "base64")  # some senders leave the padding out
    else:
        key = decode(secret.strip(), form)
    if _BLANK.fullmatch(key):
        raise ValueError("it is empty")
    if form != "text" and len(key) < SHORTEST:
        raise ValueError(f"it is shorter than {SHORTEST} bytes: was it cut?")
    return key


def to_bytes(secret: str) -> bytes:
    """UTF-8. An error of the codec would quote the secret, so it is not passed on."""
    try:
        return secret.encode()
    except UnicodeEncodeError:
        raise ValueError("it is not text") from None


def _hmac(digest: str) -> Algorithm:
    def verify(key: bytes, message: bytes, given: Sequence[bytes], encoding: str) -> bool:
        expected = encode(hmac.digest(key, message, digest), encoding)  # once, however many signatures came
        for one in given:  # noqa: SIM110  # a generator costs as much as the comparison
            if hmac.compare_digest(expected, one):
                return True
        return False

    def sign(key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, digest)

    return Algorithm(load_secret, load_secret, verify, sign)


# -- public keys ----------------------------------------------------------------------------------------------------


def load_public(secret: str, form: str) -> "PublicKeyTypes":
    """A public key out of PEM (a key or a certificate), `whpk_`, hex or base64 (DER, or 32 raw Ed25519 bytes)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = secret.strip()
    if text.startswith("-----BEGIN CERTIFICATE"):
        return x509.load_pem_x509_certificate(text.encode()).public_key()
    if text.startswith("-----BEGIN"):
        return serialization.load_pem_public_key(text.encode())
    raw = _raw_key(text.removeprefix("whpk_"))
    return Ed25519PublicKey.from_public_bytes(raw) if len(raw) == 32 else serialization.load_der_public_key(raw)


def load_private(secret: str, form: str) -> "PrivateKeyTypes":
    """A private key out of PEM, `whsk_`, hex or base64 (DER, or a raw Ed25519 seed with or without its public half)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = secret.strip()
    if text.startswith("-----BEGIN"):
        return serialization.load_pem_private_key(text.encode(), None)
    raw = _raw_key(text.removeprefix("whsk_"))
    if len(raw) in (32, 64):
        return Ed25519PrivateKey.from_private_bytes(raw[:32])
    return serialization.load_der_private_key(raw, None)


def _raw_key(text: str) -> bytes:
    try:
        raw = decode(text, "hex")
    except ValueError:
        raw = decode(text, "base64")
    if not raw.strip(b"\x00"):  # a point of small order: signatures under it can be made by anyone
        raise ValueError("it is empty")
    return raw


def _only(load: Load, kind: str, fits: Callable[[Key], bool]) -> Load:
    """`load`, refusing a key of another kind: a signature must not choose its own algorithm."""

    def checked(secret: str, form: str) -> Key:
        try:
            key = load(secret, form)
        except Exception:  # whatever a parser of keys raises may quote the key
            raise ValueError(f"it is not a key (PEM, base64 or hex); {kind} is needed") from None
        if not fits(key):
            raise ValueError(f"it is a key of another kind; {kind} is needed")
        return key

    return checked


def _asymmetric(
    kind: str,
    fits: Callable[[Key], bool],
    verify: Callable[[Key, bytes, bytes], None],
    sign: Callable[[Key, bytes], bytes],
) -> Algorithm:
    from cryptography.exceptions import InvalidSignature

    def matches(key: Key, message: bytes, given: bytes, encoding: str) -> bool:
        try:
            verify(key, message, decode(given, encoding))
        except (InvalidSignature, ValueError):
            return False
        return True

    def any_matches(key: Key, message: bytes, given: Sequence[bytes], encoding: str) -> bool:
        return any(matches(key, message, one, encoding) for one in given)

    return Algorithm(_only(load_public, kind, fits), _only(load_private, kind, fits), any_matches, sign)


def _ed25519() -> Algorithm:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    return _asymmetric(
        "Ed25519",
        lambda key: isinstance(key, (Ed25519PublicKey, Ed25519PrivateKey)),
        lambda key, message, raw: key.verify(raw, message),
        lambda key, message: key.sign(message),
    )


def _ecdsa() -> Algorithm:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    scheme = ec.ECDSA(hashes.SHA256())
    kinds = ec.EllipticCurvePublicKey, ec.EllipticCurvePrivateKey
    return _asymmetric(
        "ECDSA on P-256",
        lambda key: isinstance(key, kinds) and isinstance(key.curve, ec.SECP256R1),
        lambda key, message, raw: key.verify(raw, message, scheme),
        lambda key, message: key.sign(message, scheme),
    )


def _rsa(digest: str) -> Algorithm:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    # SHA-1 is what SNS SignatureVersion 1 is; nothing else here uses it with RSA.
    kind = hashes.SHA1() if digest == "sha1" else hashes.SHA256()  # noqa: S303
    pad = padding.PKCS1v15()
    return _asymmetric(
        "RSA of 2048 bits or more",
        lambda key: isinstance(key, (rsa.RSAPublicKey, rsa.RSAPrivateKey)) and key.key_size >= 2048,
        lambda key, message, raw: key.verify(raw, message, pad, kind),
        lambda key, message: key.sign(message, pad, kind),
    )


# -- shared tokens --------------------------------------------------------------------------------------------------


def _token() -> Algorithm:
    """The secret itself is sent. `sign` ignores the message, and so does `verify`: nothing is signed."""
    return Algorithm(
        load_secret,
        load_secret,
        lambda key, message, given, encoding: any(hmac.compare_digest(key, one) for one in given),
        lambda key, message: bytes(key),
    )


_MAKERS: dict[str, Callable[[], Algorithm]] = {
    "hmac-sha1": lambda: _hmac("sha1"),
    "hmac-sha256": lambda: _hmac("sha256"),
    "hmac-sha512": lambda: _hmac("sha512"),
    "ed25519": _ed25519,
    "ecdsa-p256-sha256": _ecdsa,
    "rsa-sha1": lambda: _rsa("sha1"),
    "rsa-sha256": lambda: _rsa("sha256"),
    "token": _token,
}
_made: dict[str, Algorithm] = {}


def algorithm(name: str) -> Algorithm:
    """The algorithm of a name. Those that need `cryptography` import it when they are first asked for."""
    if name not in _made:
        _made[name] = _MAKERS[name]()
    return _made[name]


@lru_cache(8)  # a private key is checked when it is read, which takes longer than to sign with it
def signing_key(name: str, secret: str, form: str) -> Key:
    """A secret as the key that signs with the algorithm of a name. Raises ValueError, without its value."""
    return algorithm(name).load_signing(secret, form)
