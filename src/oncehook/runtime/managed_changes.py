"""Changes of people to managed sources and tenants: add, rotate, remove. Each is audited, and needs a key.

A change reads the row, decides and writes in one transaction, so that two operators cannot undo each other's change.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from oncehook.config.configuration import read_source
from oncehook.config.keyring import KeyRing, KeyRingError
from oncehook.config.managed_secrets import ManagedSecrets, check_value, new_secrets, open_secrets, source_context
from oncehook.config.secret import is_reference, secret_fingerprint
from oncehook.model.errors import ConfigurationError
from oncehook.model.nearest import hint
from oncehook.model.rows import ManagedSource
from oncehook.model.timestamps import rfc3339
from oncehook.operations.prune import effect_horizon, horizon
from oncehook.runtime.managed_sources import PRIVATE, check_sealing_keys, settings_of, split_settings
from oncehook.store.rows import DirectoryChange
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

GRACE = 86400.0
"""Seconds for which a rotation keeps the older secrets, by default."""


class UnknownName(ConfigurationError):
    """There is no managed source or tenant of this name."""


class NameTaken(ConfigurationError):
    """There is a source or tenant of this name already."""


class KeyNeeded(ConfigurationError):
    """The key ring has no key to encrypt with."""


class SourceChanges:
    """Changes managed sources. `store` is open, and `runtime` has the configured sources and providers."""

    def __init__(self, runtime: "Runtime", store: Store, actor: str) -> None:
        self.runtime = runtime
        self.store = store
        self.actor = actor

    async def add(self, name: str, secrets: Sequence[str], settings: Mapping[str, Any]) -> None:
        """Add a source. Raises ConfigurationError for a name, provider, setting or secret that cannot be used."""
        await require_key(self.store)
        check_private(name, settings)
        now = await self._now()
        values = new_secrets(secrets, now, split_settings(settings)[1])
        self._check(name, {**settings, "secrets": list(secrets)})
        plain = json.dumps(split_settings(settings)[0])
        sealed = values.seal(self.store.keys, source_context(name))
        provider = settings.get("provider") or name

        def change(row: ManagedSource | None) -> DirectoryChange:
            if row is not None and row.removed_at is None:
                raise NameTaken(f"there is a source {name} already: rotate its secret, or remove it first")
            detail = {"source": name, "provider": provider, "secrets": fingerprints(name, values, now)}
            detail["settings"] = {key: value for key, value in settings.items() if key not in ("provider", *PRIVATE)}
            detail["encrypted_settings"] = sorted(values.settings)
            return DirectoryChange(settings=plain, secrets=sealed, action="add_source", detail=detail)

        await self.store.directory.change_source(name, self.actor, change)

    async def rotate(self, name: str, secret: str, *, grace: float = GRACE) -> None:
        """Add a secret, and let the older ones expire after `grace` seconds."""
        await require_key(self.store)
        check_value(secret)

        def change(row: ManagedSource | None) -> DirectoryChange:
            row = self._existing(name, row)
            secrets = open_row(self.store.keys, row)
            rotated = secrets.rotated(secret, row.now, later(row.now, grace))
            self.runtime.managed_sources.check(name, settings_of(row, rotated, row.now))
            return self._changed(row, rotated, "rotate_source", {"grace_seconds": grace})

        await self.store.directory.change_source(name, self.actor, change)

    async def finish(self, name: str) -> None:
        """End all secrets but the newest."""
        await require_key(self.store)

        def change(row: ManagedSource | None) -> DirectoryChange:
            row = self._existing(name, row)
            return self._changed(row, open_row(self.store.keys, row).finished(row.now), "finish_rotation", {})

        await self.store.directory.change_source(name, self.actor, change)

    async def remove(self, name: str) -> None:
        """Remove a source with its managed tenants, and erase their secrets. Its events stay."""

        def change(row: ManagedSource | None) -> DirectoryChange:
            row = self._existing(name, row)
            detail = {"source": name}
            return DirectoryChange(
                settings=row.settings, secrets="", is_removed=True, action="remove_source", detail=detail
            )

        await self.store.directory.change_source(name, self.actor, change)

    def _check(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if the source could not be used."""
        parsed = read_source(name, settings)
        if name in self.runtime.sources and name not in self.runtime.managed_sources:
            raise NameTaken(f"there is a source {name} in the configuration or in code: choose another name")
        source = self.runtime.managed_sources.check(name, parsed)
        # Otherwise no process with a worker could start any more.
        effect_horizon(self.runtime.settings, [horizon(name, parsed, source.provider, self.runtime.settings)])

    def _existing(self, name: str, row: ManagedSource | None) -> ManagedSource:
        if row is not None and row.removed_at is None:
            return row
        managed = [other.name for other in self.runtime.managed_sources.rows.values() if other.removed_at is None]
        if name in self.runtime.sources and name not in managed:
            raise UnknownName(f"the source {name} is in the configuration or in code: change it there")
        raise UnknownName(f"there is no managed source {name}: {hint(name, managed, 'managed sources')}")

    def _changed(
        self, row: ManagedSource, secrets: ManagedSecrets, action: str, detail: Mapping[str, Any]
    ) -> DirectoryChange:
        sealed = secrets.seal(self.store.keys, source_context(row.name))
        detail = {"source": row.name, "secrets": fingerprints(row.name, secrets, row.now), **detail}
        return DirectoryChange(settings=row.settings, secrets=sealed, action=action, detail=detail)

    async def _now(self) -> str:
        return rfc3339(await self.store.operations.now()) or ""


def open_row(keys: KeyRing, row: ManagedSource) -> ManagedSecrets:
    """Decrypt the secrets of a source. Raises ConfigurationError if a key is missing or wrong."""
    try:
        return open_secrets(keys, row.secrets, source_context(row.name))
    except KeyRingError as error:
        raise ConfigurationError(f"the secrets of {row.name} cannot be read: {error}") from None


async def require_key(store: Store) -> None:
    """Raise ConfigurationError if there is no key to seal with, or if a key is missing or wrong.

    The first key is recorded before it seals a secret. From then on, another key with the same id is an error.
    """
    if not store.keys:
        raise KeyNeeded(
            "managed sources and tenants need a key, because Oncehook encrypts their secrets: `oncehook keys generate` "
            "prints one, and how to set it"
        )
    await check_sealing_keys(store)
    await store.encrypted_rows.register()


def check_private(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a reference in a setting that is stored by value."""
    for key in PRIVATE:
        value = settings.get(key, ())
        for text in [value] if isinstance(value, str) else value:
            if isinstance(text, str) and is_reference(text):
                raise ConfigurationError(
                    f"sources.{name}.{key}: env: and file: references are not stored; pass a value"
                )


def fingerprints(owner: str, secrets: ManagedSecrets, now: str) -> list[str]:
    """Return the fingerprints of the active secrets, newest first."""
    return [secret_fingerprint(owner, secret.value) for secret in secrets.active(now)]


def later(now: str, seconds: float) -> str:
    """Return the time `seconds` after `now`."""
    return rfc3339(datetime.fromisoformat(now) + timedelta(seconds=seconds)) or ""
