"""The key ring: AES-256-GCM keys that encrypt secrets and payloads at rest.

The setting `keys` (ONCEHOOK_KEYS) lists the keys as `id:base64`. The first key encrypts, and all keys decrypt, so that
a key can be replaced while processes run. Every ciphertext is bound to a context, such as the row that it belongs to:
it cannot be decrypted in another place.

OncehookError
└── KeyRingError   a value cannot be encrypted or decrypted
    ├── KeyMissing the key ring does not have the key
    └── KeyWrong   the key, the context or the ciphertext is not the one that was used to encrypt
"""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from oncehook.config.secret import is_reference, resolve
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.values import SEALED_PREFIX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
PREFIX = SEALED_PREFIX
KEY_ID = re.compile(r"(?!(?:env|file)\Z)[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
WHERE = "keys (ONCEHOOK_KEYS)"
KEY_MISSING_SECONDS = 30.0
"""Seconds after which an event or effect is due again if this process lacks its key. It uses no attempt."""


class KeyRingError(OncehookError):
    """A value cannot be encrypted or decrypted. The message contains no part of a key or of a value."""

    def __init__(self, message: str, key_id: str | None) -> None:
        super().__init__(message)
        self.key_id = key_id


class KeyMissing(KeyRingError):
    """The key ring does not have the key. `key_id` names it, or is None if the key ring is empty."""


class KeyWrong(KeyRingError):
    """The key with this id is not the one that encrypted the value, or the value was moved or changed."""


class KeyRing:
    """AES-256-GCM keys by id. The first encrypts, all decrypt. `bool(ring)` tells whether it has a key."""

    __slots__ = ("_ciphers", "_keys", "primary")

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._keys = dict(keys or {})
        self._ciphers: dict[str, AESGCM] = {}
        self.primary = next(iter(self._keys), None)

    def __bool__(self) -> bool:
        return self.primary is not None

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys. The first is the one that encrypts."""
        return tuple(self._keys)

    def encrypt(self, data: bytes, context: str) -> tuple[str, bytes]:
        """Return the id of the first key, and `data` encrypted with it: a random nonce, then the ciphertext."""
        if self.primary is None:
            raise KeyMissing(
                f"{WHERE} has no key to encrypt with: `oncehook keys generate` prints one, and how to set it", None
            )
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self.primary, nonce + self._cipher(self.primary).encrypt(nonce, data, context.encode())

    def decrypt(self, key_id: str, data: bytes, context: str) -> bytes:
        """Return what was encrypted with this key and context. Raises KeyMissing or KeyWrong."""
        from cryptography.exceptions import InvalidTag  # only an inbox with encrypted values needs it

        cipher = self._cipher(key_id)
        try:
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError):
            raise KeyWrong(
                f"a value that names the key {key_id} cannot be decrypted with it: {WHERE} has another key under this "
                f"id, or the stored value was changed",
                key_id,
            ) from None

    def seal(self, text: str, context: str) -> str:
        """Encrypt a text. The result is a text that names its key: `oncehook:aesgcm:<key id>:<base64>`."""
        key_id, data = self.encrypt(text.encode("utf-8", "surrogatepass"), context)
        return f"{PREFIX}{key_id}:{base64.b64encode(data).decode()}"

    def open(self, text: str, context: str) -> str:
        """Return the text that was sealed with this context. A text that is not sealed is returned as it is."""
        if not is_sealed(text):
            return text
        key_id = key_id_of(text)
        assert key_id is not None
        try:
            data = base64.b64decode(text[len(PREFIX) + len(key_id) + 1 :], validate=True)
        except (binascii.Error, ValueError):
            data = b""
        return self.decrypt(key_id, data, context).decode("utf-8", "surrogatepass")

    def _cipher(self, key_id: str) -> "AESGCM":
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            if key_id not in self._keys:
                raise KeyMissing(f"the key {key_id} is missing: add it to {WHERE}, after the key that encrypts", key_id)
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only an inbox that uses keys needs it

            cipher = self._ciphers[key_id] = AESGCM(self._keys[key_id])
        return cipher


def is_sealed(text: str) -> bool:
    """Return whether a text is the result of `KeyRing.seal`."""
    return text.startswith(PREFIX)


def key_id_of(text: str) -> str | None:
    """Return the id of the key that sealed a text, or None if it is not sealed."""
    return text[len(PREFIX) :].partition(":")[0] if is_sealed(text) else None


def generate_key() -> str:
    """Return a new random key in base64, as an entry of the key ring has it after its id."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_keys(entries: Sequence[str], where: str = WHERE) -> KeyRing:
    """Return the key ring of a list of entries: `id:base64`, or `env:NAME` or `file:PATH` with one or more entries.

    Raises ConfigurationError, which never shows a key.
    """
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(_resolved(entries, where), 1):
        key_id, colon, encoded = entry.partition(":")
        if not colon:
            raise ConfigurationError(f"{where}: entry {number} must be id:key; `oncehook keys generate` prints one")
        if not KEY_ID.fullmatch(key_id):
            raise ConfigurationError(
                f"{where}: the id of entry {number} must be up to 32 letters, digits, - and _, and not env or file"
            )
        if key_id in keys:
            raise ConfigurationError(f"{where}: two keys have the id {key_id}; each key needs its own id")
        keys[key_id] = _decoded(encoded, f"{where}: the key {key_id}")
    return KeyRing(keys)


def _resolved(entries: Sequence[str], where: str) -> list[str]:
    found: list[str] = []
    for entry in entries:
        text = resolve(entry, where, owner="entry") if is_reference(entry) else entry
        found.extend(part for part in re.split(r"[,\s]+", text) if part)
    return found


def _decoded(encoded: str, where: str) -> bytes:
    standard = encoded.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        key = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"{where} is not base64; `oncehook keys generate` prints a usable key") from None
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"{where} has {len(key)} bytes and must have {KEY_BYTES}; `oncehook keys generate` prints a usable key"
        )
    return key
