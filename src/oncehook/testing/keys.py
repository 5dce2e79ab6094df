"""Secrets of a test's own, of whatever kind a provider signs with."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from oncehook.config.secret import resolve
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.source import Source

SHARED = ("text", "base64", "hex", "whsec")
"""Forms of a key that both sides have."""

PUBLIC = ("sns", "paypal", "plaid")
"""Algorithms of their own form whose sender alone has the key that signs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One secret: what the sender signs with, and what the source is given."""

    signing: str
    verifying: str


def make_pair(provider: Provider | Signature) -> Pair:
    """A new secret for a provider's first way to sign, or for the one that is given."""
    signature = provider.signatures[0] if isinstance(provider, Provider) else provider
    if signature.algorithm == "basic":
        return _shared(f"user:{secrets.token_urlsafe(12)}:{secrets.token_urlsafe(12)}")  # a password may hold a colon
    if signature.algorithm == "braintree":
        return _shared(f"{secrets.token_hex(8)}|{secrets.token_hex(16)}")
    if signature.algorithm.startswith(("rsa", "sns", "paypal")):
        return _asymmetric(rsa.generate_private_key(65537, 2048))
    if signature.algorithm.startswith(("ecdsa", "plaid")):
        return _asymmetric(ec.generate_private_key(ec.SECP256R1()))
    if signature.algorithm == "ed25519":
        return _ed25519(ed25519.Ed25519PrivateKey.generate(), signature.key)
    if signature.algorithm == "token":
        return _shared("token_" + secrets.token_hex(16))  # nothing that could be a key in base64 or hex
    raw = secrets.token_bytes(32)
    encoded = base64.b64encode(raw).decode()
    return _shared({"hex": raw.hex(), "base64": encoded, "whsec": "whsec_" + encoded}.get(signature.key, raw.hex()))


def shared_secret(source: Source) -> str | None:
    """What both a source and its sender have, or None where the source has only a public key."""
    if not source.settings.secrets:
        return None
    secret = resolve(source.settings.secrets[0], f"sources.{source.name}.secrets[0]")
    shared = any(one.key in SHARED and one.algorithm not in PUBLIC for one in source.provider.signatures)
    return secret if shared and not secret.startswith("whpk_") else None


def _shared(secret: str) -> Pair:
    return Pair(secret, secret)


def _asymmetric(key: Any) -> Pair:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(pem.decode(), base64.b64encode(_public(key)).decode())


def _public(key: Any) -> bytes:
    der: bytes = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return der


def _ed25519(key: ed25519.Ed25519PrivateKey, form: str) -> Pair:
    if form != "whpk":
        return _asymmetric(key)
    public = key.public_key().public_bytes_raw()
    encoded = (base64.b64encode(raw).decode() for raw in (key.private_bytes_raw(), public))
    return Pair(*(name + text for name, text in zip(("whsk_", "whpk_"), encoded, strict=True)))
