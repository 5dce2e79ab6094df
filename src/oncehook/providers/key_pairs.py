"""Generates secrets for tests, samples and `oncehook init`, of each kind that senders sign with."""

import base64
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


@dataclass(frozen=True, slots=True)
class Pair:
    """One secret: the part that the sender signs with, and the part that the source is configured with."""

    signing: str
    verifying: str


def shared(secret: str) -> Pair:
    """A secret that sender and source both have."""
    return Pair(secret, secret)


def random_secret(form: str) -> Pair:
    """A shared secret of 32 random bytes, in the format that a definition's `key` names."""
    raw = secrets.token_bytes(32)
    encoded = base64.b64encode(raw).decode()
    return shared({"hex": raw.hex(), "base64": encoded, "whsec": "whsec_" + encoded}.get(form, raw.hex()))


def rsa() -> Pair:
    """An RSA key of 2048 bits: the private key as PEM, the public key in base64."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    return _asymmetric(rsa.generate_private_key(65537, 2048))


def ecdsa() -> Pair:
    """A key on P-256: the private key as PEM, the public key in base64."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return _asymmetric(ec.generate_private_key(ec.SECP256R1()))


def ed25519(form: str) -> Pair:
    """An Ed25519 key. With the form `whpk`, it is encoded as `whsk_…` and `whpk_…`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    if form != "whpk":
        return _asymmetric(key)
    private, public = (
        base64.b64encode(raw).decode() for raw in (key.private_bytes_raw(), key.public_key().public_bytes_raw())
    )
    return Pair("whsk_" + private, "whpk_" + public)


def _asymmetric(key: "PrivateKeyTypes") -> Pair:
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public: Any = key.public_key()
    der: bytes = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Pair(pem.decode(), base64.b64encode(der).decode())
