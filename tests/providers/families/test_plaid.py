"""Plaid: tokens over the hash of the body, and the keys that verify them."""

import hashlib

import pytest

from oncehook.model.delivery import Delivery
from oncehook.providers import jwt
from oncehook.providers.signatures import algorithm
from tests.support.providers import NOW, is_accepted, sender


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
