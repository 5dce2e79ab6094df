"""JSON Web Tokens: strict parsing, verification and signing."""

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from oncehook.providers import jwt, key_pairs
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key, algorithm


@pytest.mark.parametrize("part", [b"QUI=", b"QUJ", b"QU J", b"+/+/", b"QUI\n", b"Q"])
def test_part_of_a_token_has_exactly_one_spelling(part: bytes) -> None:
    with pytest.raises(ValueError, match="base64"):
        jwt.decode_part(part)
    assert jwt.decode_part(b"QUI") == b"AB" and jwt.decode_part(b"-_-_") == b"\xfb\xff\xbf"


class Claims(msgspec.Struct, frozen=True):
    """The claims of the tokens in this module."""

    iat: int


TOKENS = {
    "ES256": jwt.Tokens("ES256", key_names="[a-z]{1,8}", claims=Claims, longest=1000),
    "RS256": jwt.Tokens("RS256", key_names="[a-z]{1,8}", claims=Claims, longest=1000),
}
PAIRS = {"ES256": key_pairs.ecdsa(), "RS256": key_pairs.rsa()}
kinds = pytest.mark.parametrize("kind", ["ES256", "RS256"])


def public_key(kind: str, pair: Pair | None = None) -> Key:
    return algorithm(TOKENS[kind].algorithm).load((pair or PAIRS[kind]).verifying, "public")


@kinds
def test_token_that_was_signed_is_read_and_verifies_with_the_public_key(kind: str) -> None:
    tokens = TOKENS[kind]
    token = tokens.read(tokens.sign(PAIRS[kind].signing, "mykey", {"iat": 5}))
    assert (token.key_name, token.claims) == ("mykey", Claims(iat=5))
    assert tokens.is_signed_by(public_key(kind), token)


@kinds
def test_token_does_not_verify_with_another_key_or_other_claims(kind: str) -> None:
    tokens = TOKENS[kind]
    text = tokens.sign(PAIRS[kind].signing, "mykey", {"iat": 5})
    other = key_pairs.ecdsa() if kind == "ES256" else key_pairs.rsa()
    assert not tokens.is_signed_by(public_key(kind, other), tokens.read(text))
    forged = jwt.signing_input({"alg": kind, "kid": "mykey"}, {"iat": 6}) + b"." + text.rpartition(b".")[2]
    assert not tokens.is_signed_by(public_key(kind), tokens.read(forged))


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ({"alg": "none", "kid": "mykey"}, {"iat": 1}),
        ({"alg": "RS256", "kid": "mykey"}, {"iat": 1}),
        ({"alg": "ES256"}, {"iat": 1}),
        ({"alg": "ES256", "kid": "My Key"}, {"iat": 1}),
        ({"alg": "ES256", "kid": "toolongname"}, {"iat": 1}),
        ({"alg": "ES256", "kid": "mykey"}, {"iat": "1"}),
        ({"alg": "ES256", "kid": "mykey"}, {}),
    ],
)
def test_token_of_another_sender_is_an_error(header: dict[str, Any], claims: dict[str, Any]) -> None:
    text = jwt.signing_input(header, claims) + b"." + jwt.encode(b"x" * 64)
    with pytest.raises(ValueError, match=r"it is not a token of this sender|it names another algorithm"):
        TOKENS["ES256"].read(text)


@pytest.mark.parametrize("text", [b"", b"a", b"a.b", b"a.b.c.d", b"!.!.!", b"e30.e30.e30", b"x" * 2000])
def test_text_that_is_not_a_token_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="it is not "):
        TOKENS["ES256"].read(text)


@pytest.mark.parametrize("size", [0, 63, 65])
def test_es256_signature_of_another_length_is_an_error(size: int) -> None:
    text = jwt.signing_input({"alg": "ES256", "kid": "mykey"}, {"iat": 1}) + b"." + jwt.encode(b"x" * size)
    with pytest.raises(ValueError, match="the signature is not 64 bytes long"):
        TOKENS["ES256"].read(text)


def test_signature_survives_the_conversion_to_der_and_back() -> None:
    raw = bytes(range(64))
    assert jwt.from_der(jwt.to_der(raw)) == raw


def test_rsa_key_of_a_jwk_must_have_2048_bits() -> None:
    def table(bits: int) -> dict[str, str]:
        numbers = rsa.generate_private_key(65537, bits).public_key().public_numbers()
        n, e = numbers.n.to_bytes(bits // 8), numbers.e.to_bytes(3)
        return {"n": jwt.encode(n).decode(), "e": jwt.encode(e).decode()}

    assert jwt.load_rsa_key(table(2048)).key_size == 2048
    with pytest.raises(ValueError, match="shorter than 2048 bits"):
        jwt.load_rsa_key(table(1024))


@pytest.mark.parametrize("change", [{"kty": "RSA"}, {"crv": "P-384"}, {"alg": "ES384"}])
def test_jwk_of_another_kind_is_an_error(change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="another kind of key"):
        jwt.load_p256_key({"kty": "EC", "crv": "P-256", "x": "", "y": "", **change})
