"""The secrets of a source or tenant that Oncehook manages. The key ring seals them into one text.

A rotation adds a secret and sets the time at which the older ones end, so that both are accepted until then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncehook.config.keyring import KeyRing, KeyWrong, is_sealed
from oncehook.config.secret import is_reference
from oncehook.model.errors import ConfigurationError

MAX_SECRETS = 16
"""A source or tenant may have this many secrets. Every delivery tries them all."""


class ManagedSecret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One secret. It verifies deliveries until `ends_at`. Times are RFC 3339 in UTC, which sort as texts."""

    value: str
    added_at: str
    ends_at: str | None = None


class ManagedSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secrets of one row, newest first, and the settings of a source that must not be readable in the database."""

    secrets: tuple[ManagedSecret, ...] = ()
    settings: dict[str, Any] = {}

    def active(self, now: str) -> tuple[ManagedSecret, ...]:
        """Return the secrets that have not ended."""
        return tuple(secret for secret in self.secrets if secret.ends_at is None or secret.ends_at > now)

    def next_end(self, now: str) -> str | None:
        """Return when the next secret ends, or None."""
        return min((secret.ends_at for secret in self.active(now) if secret.ends_at), default=None)

    def rotated(self, value: str, now: str, ends_at: str) -> "ManagedSecrets":
        """Return the secrets with a new one. The others end at `ends_at`, or earlier if that was set before.

        A value that an earlier rotation replaced becomes the newest again. Raises ConfigurationError otherwise.
        """
        active = self.active(now)
        if active and active[0].value == value:
            raise ConfigurationError("this secret is already the newest one: pass the secret that replaces it")
        others = [secret for secret in active if secret.value != value]
        if len(others) >= MAX_SECRETS:
            raise ConfigurationError(
                f"there are {MAX_SECRETS} secrets already, which is the most: end the rotation first"
            )
        ending = [msgspec.structs.replace(secret, ends_at=min(secret.ends_at or ends_at, ends_at)) for secret in others]
        return msgspec.structs.replace(self, secrets=(ManagedSecret(value, now), *ending))

    def finished(self, now: str) -> "ManagedSecrets":
        """Return only the newest secret. Raises ConfigurationError if it is the only one."""
        active = self.active(now)
        if len(active) < 2:
            raise ConfigurationError("no rotation is under way: there is only one secret")
        return msgspec.structs.replace(self, secrets=active[:1])

    def seal(self, keys: KeyRing, context: str) -> str:
        """Encrypt the secrets for the row that `context` names. Raises KeyMissing without a key."""
        return keys.seal(msgspec.json.encode(self).decode(), context)


def new_secrets(values: Sequence[str], now: str, settings: Mapping[str, Any] | None = None) -> ManagedSecrets:
    """Return the secrets of a new source or tenant. Raises ConfigurationError for values that cannot be stored."""
    if len(values) > MAX_SECRETS:
        raise ConfigurationError(f"there are {len(values)} secrets: a source or a tenant may have {MAX_SECRETS}")
    if len(set(values)) != len(values):
        raise ConfigurationError("a secret is repeated: pass each secret once")
    for value in values:
        check_value(value)
    return ManagedSecrets(tuple(ManagedSecret(value, now) for value in values), dict(settings or {}))


def check_value(value: str) -> None:
    """Raise ConfigurationError for a reference: a managed secret is stored by value."""
    if is_reference(value):
        raise ConfigurationError(
            "a managed secret is stored by value: env: and file: references are read by the command line only"
        )


def open_secrets(keys: KeyRing, sealed: str, context: str) -> ManagedSecrets:
    """Decrypt the secrets of a row. Raises KeyMissing or KeyWrong, also for a text that was never encrypted."""
    if not is_sealed(sealed):
        raise KeyWrong("the secrets of a row are not encrypted, so they were not written by Oncehook", None)
    return msgspec.json.decode(keys.open(sealed, context), type=ManagedSecrets)


def source_context(name: str) -> str:
    """Return the context to which the secrets of a managed source are bound."""
    return f"source {name}"


def tenant_context(source: str, tenant: str) -> str:
    """Return the context to which the secrets of a managed tenant are bound."""
    return f"tenant {source}/{tenant}"
