"""Signature algorithms: `verify` accepts what `sign` signs, and no other kind of key or signature."""

import ast
import base64
import hashlib
import hmac
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, padding, rsa, x25519

from oncehook.providers import signatures
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import algorithm, decode, encode, load_secret
from tests.support.providers import pair

MESSAGE = b"1800000000.{}"
NAMES = ["hmac-sha1", "hmac-sha256", "hmac-sha512", "ed25519", "ecdsa-p256-sha256", "rsa-sha1", "rsa-sha256"]


def keys_of(name: str, number: int = 0) -> Pair:
    return pair(name, "text" if name.startswith("hmac") else "public", number)


def signed(name: str, message: bytes = MESSAGE, number: int = 0) -> bytes:
    return algorithm(name).sign(signing_key(name, number), message)


@cache  # loading an RSA key takes 14 ms
def signing_key(name: str, number: int) -> Any:
    return algorithm(name).load_signing(keys_of(name, number).signing, "text")


def verifies(name: str, given: list[bytes], *, encoding: str = "base64", message: bytes = MESSAGE) -> bool:
    kind = algorithm(name)
    return kind.verify(kind.load(keys_of(name).verifying, "text"), message, given, encoding)


@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("name", NAMES)
def test_signature_verifies_for_its_message_and_key_only(name: str, encoding: str) -> None:
    good = encode(signed(name), encoding)
    assert verifies(name, [good], encoding=encoding)
    assert not verifies(name, [good], encoding=encoding, message=MESSAGE + b" ")
    assert not verifies(name, [encode(signed(name, b"other"), encoding)], encoding=encoding)
    assert not verifies(name, [encode(signed(name, number=1), encoding)], encoding=encoding)


@pytest.mark.parametrize("name", NAMES)
def test_one_of_several_signatures_may_match(name: str) -> None:
    good = encode(signed(name), "base64")
    assert verifies(name, [b"", b"AAAA", good])
    assert not verifies(name, [])
    assert not verifies(name, [b"", b"AAAA", good[:-4]])


@pytest.mark.parametrize(
    "given", [b"", b"=", b"\xff", b"A", b"AAA", b"AA=A", b" ", b"zz", "ü".encode(), b"\x00" * 64, b"A" * 9999]
)
@pytest.mark.parametrize("name", [*NAMES, "token"])
def test_malformed_signature_does_not_verify_and_never_raises(name: str, given: bytes) -> None:
    if name == "token":
        assert algorithm(name).verify(b"secret", MESSAGE, [given], "hex") is False
        return
    assert verifies(name, [given], encoding="hex") is False
    assert verifies(name, [given], encoding="base64") is False


def test_hmac_agrees_with_the_standard_library() -> None:
    expected = hmac.new(b"key", MESSAGE, hashlib.sha256).hexdigest().encode()
    assert algorithm("hmac-sha256").verify(b"key", MESSAGE, [expected], "hex")
    assert not algorithm("hmac-sha256").verify(b"key", MESSAGE, [expected.upper()], "hex")


def test_token_must_match_completely() -> None:
    check = algorithm("token")
    key = check.load("a long token", "text")
    assert check.verify(key, b"", [check.sign(key, b"")], "hex")
    assert not check.verify(key, b"", [b"a long toke", b"a long token ", b""], "hex")


SECRET_NAMES = {
    "expected",
    "given",
    "one",
    "candidate",
    "secret",
    "key",
    "password",
    "signed",
    "signature",
    "signatures",
}
SECRET_NAMES |= {"token", "tokens", "digest", "verify_token", "private", "credentials", "hashes", "pairs", "_digest"}
FOLDER = Path(signatures.__file__).parent
FAMILIES = [*(FOLDER / "families").glob("*.py")]
COMPARING = [*FOLDER.glob("*.py"), *FAMILIES]
COMPARING += [FOLDER.parent / "web" / name for name in ("app.py", "auth.py", "guard.py")]


def names_in(node: ast.expr) -> set[str]:
    """The variable or attribute names on one side of a comparison. Calls have none."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Subscript):
        return names_in(node.value)
    return set()


def compared_openly(source: str) -> Iterator[str]:
    """Comparisons of secrets with `==`, whose time reveals how many bytes match."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
            sides = (node.left, *node.comparators)
            if any(isinstance(side, (ast.Constant, ast.Tuple)) for side in sides):
                continue  # a comparison with a constant is no secret
            if SECRET_NAMES & set().union(*(names_in(side) for side in sides)):
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("file", COMPARING, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_secrets_are_compared_in_constant_time_only(file: Path) -> None:
    assert list(compared_openly(file.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "planted",
    ["given == expected", "x if self.token != value else y", "pairs[0] == sent", "found == host.verify_token"],
)
def test_check_of_comparisons_finds_an_open_comparison(planted: str) -> None:
    assert list(compared_openly(f"def f():\n    return {planted}"))
    assert not list(compared_openly("def f():\n    return compare_digest(given, expected) and kind == 'token'"))


def test_every_family_compares_in_constant_time_or_uses_an_algorithm() -> None:
    for file in FAMILIES:
        text = file.read_text("utf-8")
        compares = any(call in text for call in ("compare_digest(", ".verify", "TOKENS.is_signed_by("))
        assert compares or file.stem == "__init__", file.name


# -- shared secrets -------------------------------------------------------------------------------------------------


def test_shared_secret_is_decoded_from_its_format() -> None:
    assert load_secret("whsec_c2VjcmV0", "text") == b"whsec_c2VjcmV0"
    key = b"a key of 16 byte"
    encoded = "YSBrZXkgb2YgMTYgYnl0ZQ"
    assert load_secret(f"whsec_{encoded}==", "whsec") == load_secret(f"whsec_{encoded}", "whsec") == key
    assert load_secret(f"{encoded}==", "whsec") == load_secret(f"{encoded}==", "base64") == key
    assert load_secret(key.hex(), "hex") == key
    assert load_secret("Grüße", "text") == "Grüße".encode()
    assert load_secret("whsec_YSBrZXkgb2YgMTcgYnl0ZXM", "whsec") == b"a key of 17 bytes"  # one "=" is missing


def test_secret_that_is_not_in_its_format_says_which_one() -> None:
    for secret, form, message in (("whsec_ü", "whsec", "base64"), ("xyz", "hex", "hex"), ("\ud800", "text", "text")):
        with pytest.raises(ValueError, match=f"^it is not {message}$"):
            load_secret(secret, form)


@pytest.mark.parametrize(
    ("secret", "form"),
    [
        ("", "text"), (" ", "text"), ("whsec_", "text"), ("\x00", "text"),
        ("whsec_", "whsec"), ("whsec_AAAA", "whsec"), ("whsec_IA==", "whsec"), ("", "base64"), ("AAAAAAAA", "base64"),
        ("", "hex"), ("00" * 64, "hex"), ("whsec_not base64", "whsec"), ("c2VjcmV", "base64"), ("0x00", "hex"),
        ("ü", "base64"), ("whsec_YQ==", "whsec"), ("whsec_c2VjcmV0", "whsec"),
        ("c2VjcmV0", "base64"), ("61" * 15, "hex"),
    ],
)  # fmt: skip
def test_secret_that_is_empty_after_decoding_is_an_error(secret: str, form: str) -> None:
    with pytest.raises(ValueError, match="it is "):
        load_secret(secret, form)


def test_key_of_zeros_is_the_empty_key_of_hmac() -> None:
    """The reason for the rule above: anyone could sign with a key of zeros."""
    assert hmac.digest(b"", MESSAGE, "sha256") == hmac.digest(bytes(64), MESSAGE, "sha256")


# -- public keys ----------------------------------------------------------------------------------------------------


def spki(key: object, encoding: serialization.Encoding = serialization.Encoding.DER) -> bytes:
    public: bytes = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return public


def test_public_key_is_loaded_from_pem_base64_or_hex() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    signature = encode(key.sign(MESSAGE, ec.ECDSA(hashes.SHA256())), "base64")
    kind = algorithm("ecdsa-p256-sha256")
    pem = spki(key, serialization.Encoding.PEM).decode()
    for given in (pem, f"\n{pem}\n", base64.b64encode(spki(key)).decode(), spki(key).hex()):
        assert kind.verify(kind.load(given, "public"), MESSAGE, [signature], "base64")


def test_raw_ed25519_key_is_loaded() -> None:
    keys = pair("ed25519", "whpk", 0)
    raw = base64.b64decode(keys.verifying.removeprefix("whpk_"))
    kind = algorithm("ed25519")
    signature = encode(kind.sign(kind.load_signing(keys.signing, "whsk"), MESSAGE), "hex")
    for given in (keys.verifying, raw.hex(), base64.b64encode(raw).decode()):
        assert kind.verify(kind.load(given, "public"), MESSAGE, [signature], "hex")


def test_signing_key_with_its_public_half_is_loaded() -> None:
    keys = pair("ed25519", "whpk", 0)
    seed, public = (base64.b64decode(text[5:]) for text in (keys.signing, keys.verifying))
    kind = algorithm("ed25519")
    both = "whsk_" + base64.b64encode(seed + public).decode()
    assert kind.sign(kind.load_signing(both, ""), MESSAGE) == kind.sign(kind.load_signing(keys.signing, ""), MESSAGE)


OTHER_KINDS = {
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "X25519": x25519.X25519PrivateKey.generate,
}


@pytest.mark.parametrize("other", OTHER_KINDS)
@pytest.mark.parametrize("name", ["ed25519", "ecdsa-p256-sha256", "rsa-sha256"])
def test_another_kind_of_key_is_an_error(name: str, other: str) -> None:
    text = base64.b64encode(spki(OTHER_KINDS[other]())).decode()
    needed = {"ed25519": "Ed25519", "ecdsa-p256-sha256": "ECDSA on P-256", "rsa-sha256": "RSA of 2048 bits or more"}
    with pytest.raises(ValueError, match=f"{needed[name]} is needed") as caught:
        algorithm(name).load(text, "public")
    assert text not in str(caught.value)


def test_each_algorithm_rejects_the_keys_of_the_others() -> None:
    kinds = ["ed25519", "ecdsa-p256-sha256", "rsa-sha256"]
    for name in kinds:
        for other in kinds:
            if other != name:
                with pytest.raises(ValueError, match="is needed"):
                    algorithm(name).load(keys_of(other).verifying, "public")


def test_short_rsa_key_is_an_error() -> None:
    short = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ValueError, match="2048 bits"):
        algorithm("rsa-sha256").load(base64.b64encode(spki(short)).decode(), "public")


def test_ed25519_key_of_zeros_is_an_error() -> None:
    for text in ("whpk_" + base64.b64encode(bytes(32)).decode(), "00" * 32):
        with pytest.raises(ValueError, match="not a key"):
            algorithm("ed25519").load(text, "whpk")


@pytest.mark.parametrize(("name", "digest"), [("rsa-sha1", hashes.SHA1), ("rsa-sha256", hashes.SHA256)])
def test_rsa_signs_with_the_digest_of_its_name(name: str, digest: type[hashes.HashAlgorithm]) -> None:
    public = algorithm(name).load(keys_of(name).verifying, "public")
    public.verify(signed(name), MESSAGE, padding.PKCS1v15(), digest())  # the library's own, which raises


def test_rsa_with_the_other_digest_or_padding_does_not_verify() -> None:
    assert not verifies("rsa-sha256", [encode(signed("rsa-sha1"), "base64")])
    assert not verifies("rsa-sha1", [encode(signed("rsa-sha256"), "base64")])
    kind = algorithm("rsa-sha256")
    key = kind.load_signing(keys_of("rsa-sha256").signing, "public")
    pss = key.sign(MESSAGE, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
    assert not verifies("rsa-sha256", [encode(pss, "base64")])


# -- encodings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_decode_is_the_inverse_of_encode(encoding: str) -> None:
    for raw in (b"", b"\x00", b"any bytes \xff"):
        assert decode(encode(raw, encoding), encoding) == raw


@pytest.mark.parametrize("text", [b"A", b"AAA", b"AA=", b"AA-_", b"AA A", b"AAAA\n", b"\xff"])
def test_base64_with_other_characters_or_without_padding_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="it is not base64"):
        decode(text, "base64")


def test_private_key_is_loaded_from_der_in_base64() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    der = key.private_bytes(encoding, form, serialization.NoEncryption())
    loaded = algorithm("ecdsa-p256-sha256").load_signing(base64.b64encode(der).decode(), "public")
    assert loaded.private_numbers() == key.private_numbers()
