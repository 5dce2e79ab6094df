"""Signature algorithms, each with `verify` and `sign`. They are pure functions over bytes.

Every `verify` compares in constant time and returns False for anything that is not a signature. It never raises.
Keys are loaded once, at start-up. A key that cannot be used raises a ValueError, which never quotes the key.
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
    """One signature algorithm: how its keys are loaded, and how it verifies and signs."""

    load: Load  # (configured secret, form) → the key that verifies
    load_signing: Load  # (configured secret, form) → the key that signs
    verify: Callable[[Key, bytes, Sequence[bytes], str], bool]  # (key, message, encoded signatures, encoding) → any?
    sign: Callable[[Key, bytes], bytes]


# -- encodings ------------------------------------------------------------------------------------------------------


def encode(raw: bytes, encoding: str) -> bytes:
    return binascii.hexlify(raw) if encoding == "hex" else binascii.b2a_base64(raw, newline=False)


def decode(text: bytes | str, encoding: str) -> bytes:
    """Decode hex or base64 strictly: raises ValueError for other characters or missing padding."""
    try:
        return binascii.unhexlify(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"it is not {encoding}") from None


# -- HMAC -----------------------------------------------------------------------------------------------------------

# HMAC pads its key with zeros, so a key of zeros is the same as an empty key. A prefix alone is an empty secret too.
_BLANK = re.compile(rb"[\x00\s]*(?:wh(?:sec|pk|sk)_)?[\x00\s]*")


SHORTEST = 16
"""Minimum bytes of an encoded key. Senders generate 24 random bytes or more. People may choose a text secret."""


def load_secret(secret: str, form: str) -> bytes:
    """The bytes of a shared secret. Raises ValueError if it is empty, too short, or not in its format."""
    if form == "text":
        key = to_bytes(secret)
    elif form == "whsec":
        text = secret.strip().removeprefix("whsec_")
        key = decode(text + "=" * (-len(text) % 4), "base64")  # some senders omit the padding
    else:
        key = decode(secret.strip(), form)
    if _BLANK.fullmatch(key):
        raise ValueError("it is empty")
    if form != "text" and len(key) < SHORTEST:
        raise ValueError(f"it is shorter than {SHORTEST} bytes: is it complete?")
    return key


def to_bytes(secret: str) -> bytes:
    """Encode a secret as UTF-8. The codec's own error would quote the secret, so it is replaced."""
    try:
        return secret.encode()
    except UnicodeEncodeError:
        raise ValueError("it is not text") from None


def _hmac(digest: str) -> Algorithm:
    def verify(key: bytes, message: bytes, signatures: Sequence[bytes], encoding: str) -> bool:
        expected = encode(hmac.digest(key, message, digest), encoding)  # computed once for all signatures
        for signature in signatures:  # noqa: SIM110  # a generator costs as much as the comparison
            if hmac.compare_digest(expected, signature):
                return True
        return False

    def sign(key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, digest)

    return Algorithm(load_secret, load_secret, verify, sign)


# -- public keys ----------------------------------------------------------------------------------------------------


def load_public(secret: str, form: str) -> "PublicKeyTypes":
    """Load a public key from PEM (key or certificate), `whpk_`, hex or base64 (DER, or 32 raw Ed25519 bytes)."""
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
    """Load a private key from PEM, `whsk_`, hex or base64 (DER, or an Ed25519 seed with or without its public key)."""
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
    if not raw.strip(b"\x00"):  # a point of small order: anyone can make signatures that verify with it
        raise ValueError("it is empty")
    return raw


def _only(load: Load, kind: str, fits: Callable[[Key], bool]) -> Load:
    """Wrap `load` so that it rejects other kinds of keys: a signature must not choose its own algorithm."""

    def checked(secret: str, form: str) -> Key:
        try:
            key = load(secret, form)
        except Exception:  # any error of the parser may quote the key
            raise ValueError(f"it is not a key (PEM, base64 or hex); {kind} is needed") from None
        if not fits(key):
            raise ValueError(f"it is another kind of key; {kind} is needed")
        return key

    return checked


def _asymmetric(
    kind: str,
    fits: Callable[[Key], bool],
    verify: Callable[[Key, bytes, bytes], None],
    sign: Callable[[Key, bytes], bytes],
) -> Algorithm:
    from cryptography.exceptions import InvalidSignature

    def matches(key: Key, message: bytes, signature: bytes, encoding: str) -> bool:
        try:
            verify(key, message, decode(signature, encoding))
        except (InvalidSignature, ValueError):
            return False
        return True

    def any_matches(key: Key, message: bytes, signatures: Sequence[bytes], encoding: str) -> bool:
        return any(matches(key, message, signature, encoding) for signature in signatures)

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

    # Only SignatureVersion 1 of SNS uses SHA-1 with RSA.
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
    """A token: the request carries the secret itself. Nothing is signed, so `sign` and `verify` ignore the message."""
    return Algorithm(
        load_secret,
        load_secret,
        lambda key, message, tokens, encoding: any(hmac.compare_digest(key, token) for token in tokens),
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
_algorithms: dict[str, Algorithm] = {}


def algorithm(name: str) -> Algorithm:
    """The algorithm of a name. One that needs `cryptography` imports it on first use."""
    if name not in _algorithms:
        _algorithms[name] = _MAKERS[name]()
    return _algorithms[name]


@lru_cache(8)  # loading a private key also validates it, which takes longer than signing
def signing_key(name: str, secret: str, form: str) -> Key:
    """The signing key of a secret, for the algorithm of a name. Raises ValueError, which never quotes the secret."""
    return algorithm(name).load_signing(secret, form)
