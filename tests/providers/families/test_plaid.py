"""Plaid: tokens over the hash of the body, and the keys that verify them."""

import hashlib

import pytest

from oncehook.model.delivery import Delivery
from oncehook.providers import jwt
from oncehook.providers.families.plaid import name_of
from oncehook.providers.signatures import algorithm
from tests.support.providers import NOW, is_accepted, rejection_reason, sender


def token(header: dict[str, object], body: bytes) -> str:
    """A token with this header, signed with the key of the test."""
    message = jwt.signing_input(header, {"iat": int(NOW), "request_body_sha256": hashlib.sha256(body).hexdigest()})
    kind = algorithm("ecdsa-p256-sha256")
    signature = kind.sign(kind.load_signing(sender("plaid").pair().signing, "public"), message)
    return (message + b"." + jwt.encode(jwt.from_der(signature))).decode()


@pytest.mark.parametrize("name", ["none", "None", "HS256", "es256", "ES384", "RS256", "", None, ["ES256"]])
def test_token_that_names_another_algorithm_is_rejected_even_if_it_verifies(name: object) -> None:
    for alg, accepted in (("ES256", True), (name, False)):
        headers = {"Plaid-Verification": token({"alg": alg, "kid": "k"}, b"{}")}
        assert is_accepted(sender("plaid"), Delivery.of(b"{}", headers)) is accepted


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('{"kid":"a"}', "a"),
        ('{"key":{"kid":"a"}}', "a"),
        ('{"kid":7}', None),
        ("{}", None),
        ("[]", None),
        ("not JSON", None),
    ],
)
def test_name_of_a_jwk_is_its_kid(content: str, name: str | None) -> None:
    assert name_of(content) == name


@pytest.mark.parametrize("secret", ["user:", ":secret", "a b:c", "client:sécret", "nonsense", "{", '{"kty":"EC"}'])
def test_secret_that_is_neither_credentials_nor_a_key_is_an_error(secret: str) -> None:
    family, signature = sender("plaid").signature.family, sender("plaid").signature
    with pytest.raises(ValueError, match=r"it is not a key|it is another kind of key"):
        family.load_key(signature, secret)
    assert not family.shares_secret(signature)


def test_repeated_token_header_is_malformed() -> None:
    delivery = sender("plaid").compose()
    token_header = (b"plaid-verification", delivery.headers[b"plaid-verification"])
    verifier = sender("plaid").source().verifier
    assert verifier is not None
    assert rejection_reason(verifier, Delivery(delivery.body, [token_header, token_header])) == "malformed"
