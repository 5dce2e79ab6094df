"""Generated secrets: each kind can sign, its other half verifies, and two are never the same."""

import base64

import pytest

from oncehook.providers import key_pairs
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import algorithm, encode


@pytest.mark.parametrize(
    ("name", "form", "pair"),
    [
        ("hmac-sha256", "text", key_pairs.random_secret("text")),
        ("hmac-sha256", "hex", key_pairs.random_secret("hex")),
        ("hmac-sha256", "base64", key_pairs.random_secret("base64")),
        ("hmac-sha256", "whsec", key_pairs.random_secret("whsec")),
        ("rsa-sha256", "public", key_pairs.rsa()),
        ("ecdsa-p256-sha256", "public", key_pairs.ecdsa()),
        ("ed25519", "public", key_pairs.ed25519("public")),
        ("ed25519", "whpk", key_pairs.ed25519("whpk")),
    ],
    ids=lambda value: None if isinstance(value, Pair) else value,
)
def test_signature_of_one_half_verifies_with_the_other(name: str, form: str, pair: Pair) -> None:
    kind = algorithm(name)
    signature = encode(kind.sign(kind.load_signing(pair.signing, form), b"message"), "base64")
    key = kind.load(pair.verifying, form)
    assert kind.verify(key, b"message", [signature], "base64")
    assert not kind.verify(key, b"another message", [signature], "base64")


def test_shared_secret_is_the_same_on_both_sides() -> None:
    assert key_pairs.shared("secret") == Pair("secret", "secret")


def test_standard_webhooks_keys_carry_their_prefix() -> None:
    pair = key_pairs.ed25519("whpk")
    assert pair.signing.startswith("whsk_") and pair.verifying.startswith("whpk_")
    assert len(base64.b64decode(pair.verifying.removeprefix("whpk_"))) == 32
    assert key_pairs.random_secret("whsec").signing.startswith("whsec_")


def test_two_secrets_are_never_the_same() -> None:
    assert len({key_pairs.random_secret("hex").signing for _ in range(50)}) == 50
    assert key_pairs.ecdsa() != key_pairs.ecdsa()
