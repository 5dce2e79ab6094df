"""The key ring encrypts with its first key, decrypts with all, and never shows a key."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from oncehook.config.keyring import (
    KeyMissing,
    KeyRing,
    KeyWrong,
    generate_key,
    is_sealed,
    key_id_of,
    read_keys,
)
from oncehook.model.errors import ConfigurationError

OLD = base64.b64encode(b"o" * 32).decode()
NEW = base64.b64encode(bytes(range(224, 256))).decode()  # contains + and /
RING = read_keys([f"2026b:{NEW}", f"2026a:{OLD}"])


@given(st.binary(max_size=200), st.text(max_size=20))
def test_encrypted_bytes_are_decrypted_with_the_same_context(data: bytes, context: str) -> None:
    key_id, encrypted = RING.encrypt(data, context)
    assert key_id == "2026b"
    assert RING.decrypt(key_id, encrypted, context) == data
    assert len(encrypted) == 12 + len(data) + 16


@given(st.text(max_size=100))
def test_sealed_text_names_its_key_and_is_opened_to_the_same_text(text: str) -> None:
    sealed = RING.seal(text, "tenant acme")
    assert sealed.startswith("oncehook:aesgcm:2026b:") and sealed.isascii()
    assert is_sealed(sealed) and key_id_of(sealed) == "2026b"
    assert RING.open(sealed, "tenant acme") == text


def test_ciphertext_is_aes_256_gcm_with_the_nonce_in_front_and_the_context_as_associated_data() -> None:
    _, encrypted = RING.encrypt(b"paid", "row 7")
    assert AESGCM(bytes(range(224, 256))).decrypt(encrypted[:12], encrypted[12:], b"row 7") == b"paid"


def test_same_text_is_encrypted_differently_each_time() -> None:
    assert len({RING.seal("x", "y") for _ in range(100)}) == 100


def test_text_that_is_not_sealed_is_returned_as_it_is() -> None:
    assert KeyRing().open("whsec_plain", "x") == "whsec_plain"
    assert not is_sealed("whsec_plain") and key_id_of("whsec_plain") is None


def test_old_key_still_decrypts_after_a_new_one_is_put_in_front() -> None:
    sealed = read_keys([f"2026a:{OLD}"]).seal("secret", "x")
    assert RING.open(sealed, "x") == "secret"
    assert (RING.key_ids, RING.primary) == (("2026b", "2026a"), "2026b")


def test_missing_key_is_named() -> None:
    sealed = RING.seal("secret", "x")
    with pytest.raises(KeyMissing, match=r"the key 2026b is missing: add it to keys \(ONCEHOOK_KEYS\)") as caught:
        read_keys([f"2026a:{OLD}"]).open(sealed, "x")
    assert caught.value.key_id == "2026b"


def test_empty_ring_refuses_to_encrypt_and_says_what_to_do() -> None:
    assert not KeyRing() and RING
    with pytest.raises(KeyMissing, match="`oncehook keys generate` prints one") as caught:
        KeyRing().encrypt(b"x", "x")
    assert caught.value.key_id is None


def test_other_key_under_the_same_id_is_wrong() -> None:
    sealed = RING.seal("secret", "x")
    with pytest.raises(KeyWrong, match="has another key under this id") as caught:
        read_keys([f"2026b:{OLD}"]).open(sealed, "x")
    assert caught.value.key_id == "2026b" and caught.value.__suppress_context__


@pytest.mark.parametrize("change", ["context", "first", "last", "short", "empty", "not base64"])
def test_value_that_was_moved_or_changed_is_not_decrypted(change: str) -> None:
    sealed = RING.seal("secret", "row 1")
    prefix, _, encoded = sealed.rpartition(":")
    data = base64.b64decode(encoded)
    changed = {
        "context": data,
        "first": bytes([data[0] ^ 1]) + data[1:],
        "last": data[:-1] + bytes([data[-1] ^ 1]),
        "short": data[:20],
        "empty": b"",
        "not base64": b"",
    }[change]
    text = "ä" if change == "not base64" else base64.b64encode(changed).decode()
    with pytest.raises(KeyWrong):
        RING.open(f"{prefix}:{text}", "row 2" if change == "context" else "row 1")


def test_keys_come_from_variables_and_files_with_one_or_more_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"2026b:{NEW}\n2026a:{OLD}\n")
    monkeypatch.setenv("OLDEST_KEY", f"2025:{OLD}")
    ring = read_keys([f"file:{file}", "env:OLDEST_KEY"])
    assert ring.key_ids == ("2026b", "2026a", "2025")
    assert "2025" in ring and "2024" not in ring


def test_key_in_the_alphabet_for_urls_is_the_same_key() -> None:
    url_safe = base64.urlsafe_b64encode(bytes(range(224, 256))).decode().rstrip("=")
    assert url_safe != NEW.rstrip("=")
    assert read_keys([f"2026b:{url_safe}"]).open(RING.seal("x", "y"), "y") == "x"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["abc"], "entry 1 must be id:key; `oncehook keys generate` prints one"),
        ([f"a:{OLD}", "b:###"], "the key b is not base64"),
        (["a:" + base64.b64encode(b"x" * 16).decode()], "the key a has 16 bytes and must have 32"),
        (["a:"], "the key a has 0 bytes and must have 32"),
        ([f"a b:{OLD}"], "entry 1 must be id:key"),
        ([f"ä:{OLD}"], "the id of entry 1 must be up to 32 letters"),
        ([f"a:{OLD}", f"a:{NEW}"], "two keys have the id a"),
        (["env:NO_SUCH_KEY"], "is empty: set NO_SUCH_KEY in the environment"),
        (["file:/no/such/file"], "/no/such/file cannot be read"),
    ],
)
def test_unusable_entry_is_named_without_its_key(entries: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_keys(entries)
    assert message in str(caught.value) and str(caught.value).startswith("keys (ONCEHOOK_KEYS)")
    assert OLD not in str(caught.value) and "###" not in str(caught.value)


def test_reference_in_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("env:HOME")
    with pytest.raises(ConfigurationError, match="not env or file"):
        read_keys([f"file:{tmp_path}/keys"])


def test_generated_key_is_usable_and_new_each_time() -> None:
    assert len({generate_key() for _ in range(10)}) == 10
    assert read_keys([f"a:{generate_key()}"])


def test_ring_shows_ids_and_no_key() -> None:
    assert repr(RING) == "KeyRing(2026b, 2026a)"


def test_ring_without_use_imports_no_cryptography() -> None:
    code = (
        "import sys; from oncehook.config.keyring import read_keys\n"
        f"ring = read_keys(['a:{OLD}']); assert ring.open('plain', 'x') == 'plain'\n"
        "assert not any(name.startswith('cryptography') for name in sys.modules)\n"
        "ring.seal('x', 'y'); assert 'cryptography' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
