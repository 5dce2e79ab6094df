"""Managed sources: sources in the database that every process uses within a second of a change, without a restart.

A removed source is no longer received, and events that were accepted before are still handled.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncehook.config.configuration import read_source
from oncehook.config.keyring import KeyRingError
from oncehook.config.managed_secrets import ManagedSecrets, open_secrets, source_context
from oncehook.config.settings import Horizon, Settings, SourceSettings
from oncehook.handlers.forward import source_forward
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.rows import ManagedSource
from oncehook.model.timestamps import rfc3339
from oncehook.observability import signals
from oncehook.operations.keys import check_proofs
from oncehook.operations.prune import horizon
from oncehook.providers import definition as providers
from oncehook.providers.source import Source
from oncehook.runtime.forwards import make_forward
from oncehook.runtime.settings_watch import UNKNOWN
from oncehook.runtime.source_factory import make_source
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

OwnProviders = Mapping[str, Mapping[str, Any]]

PRIVATE = ("forward", "forward_secret", "public_url", "verify_token")
"""Settings of a source that may contain credentials. They are sealed with its secrets."""


class ManagedSources:
    """The managed sources of one process. They are among `runtime.sources`, next to those of the configuration."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        self.rows: dict[str, ManagedSource] = {}  # also the removed ones
        self._built: set[str] = set()  # in `runtime.sources`
        self._ends: dict[str, str] = {}  # by source: when its next secret ends
        runtime.settings_watch.add(self.read, every_second=self.end_secrets)

    def __contains__(self, name: object) -> bool:
        return name in self.rows and self.rows[str(name)].removed_at is None

    async def read(self, previous: int) -> None:
        """Read the changed rows. At a start, raise ConfigurationError if the sources cannot be used."""
        rows = await self.runtime.store.directory.sources(previous)
        if previous == UNKNOWN:
            await self.load(self.runtime.store, rows)
        else:
            if self.runtime.store.keys and any(json.loads(row.settings).get("encrypt") for row in rows):
                await self.runtime.store.encrypted_rows.register()  # before the first event is encrypted
            for row in rows:
                self._update(row)
            if rows:
                await self.runtime.consumers.register()  # a consumer's `forward` may handle a new source

    async def load(self, store: Store, rows: list[ManagedSource] | None = None, *, needs_keys: bool = True) -> None:
        """Use the managed sources of the database. Raises ConfigurationError if they cannot be used.

        That is the case if a source is also defined in the configuration or in code, or if a key is missing or wrong.
        Without `needs_keys`, a source whose key is missing or wrong is left out, so that it can be listed and removed.
        """
        rows = await store.directory.sources() if rows is None else rows
        if needs_keys:
            await check_sealing_keys(store)
        for name in self._built - {row.name for row in rows if row.removed_at is None}:
            self._remove(name)
        for row in rows:
            if row.removed_at is None and row.name in self.runtime.sources and row.name not in self._built:
                raise ConfigurationError(defined_twice(row.name))
            self._update(row)

    def end_secrets(self) -> None:
        """Stop using the secrets whose rotation has ended."""
        now = rfc3339(self.runtime.clock.datetime()) or ""
        for name in [name for name, ends_at in self._ends.items() if ends_at <= now]:
            self._update(self.rows[name])

    def _update(self, row: ManagedSource) -> None:
        """Use a row. If it cannot be used, log that and keep the source as it was."""
        self.rows[row.name] = row
        self._ends.pop(row.name, None)
        try:
            if row.removed_at is not None:
                self._remove(row.name)
                self._keep_horizon(row)
            else:
                self._use(row)
        except (ConfigurationError, KeyRingError) as error:
            signals.emit("managed_source_unusable", source=row.name, detail=str(error))

    def _use(self, row: ManagedSource) -> None:
        if row.name in self.runtime.sources and row.name not in self._built:
            raise ConfigurationError(defined_twice(row.name))
        secrets = open_secrets(self.runtime.store.keys, row.secrets, source_context(row.name))
        now = rfc3339(self.runtime.clock.datetime()) or ""
        self.put(row.name, settings_of(row, secrets, now))
        self._built.add(row.name)
        ends_at = secrets.next_end(now)
        if ends_at is not None:
            self._ends[row.name] = ends_at

    def put(self, name: str, settings: SourceSettings) -> Source:
        """Add a source, or replace it by one with other settings. Raises ConfigurationError and changes nothing.

        Deliveries that are being received keep the source with which they began.
        """
        runtime = self.runtime
        source, forward = runtime.sources.pop(name, None), runtime.forwards.pop(name, None)
        tenants = runtime.tenants.pop(name, None)
        runtime.handlers.remove_forward(name)
        try:
            replaced = runtime.add_source(name, settings)
        except ConfigurationError:
            runtime.sources.pop(name, None)
            runtime.forwards.pop(name, None)
            runtime.tenants.pop(name, None)
            runtime.handlers.remove_forward(name)
            if source is not None:
                runtime.sources[name] = source
            if tenants is not None:
                runtime.tenants[name] = tenants
            if forward is not None:
                runtime.handlers.add(forward.handler)
                runtime.forwards[name] = forward
            raise
        if source is not None:
            _keep_uses(source, replaced)
        return replaced

    def check(self, name: str, settings: SourceSettings) -> Source:
        """Make a source without adding it. Raises ConfigurationError if it could not be used in this process."""
        runtime, where = self.runtime, f"sources.{name}"
        source = make_source(runtime, name, settings)
        horizon(name, settings, source.provider, runtime.settings)
        if settings.intake is not None:
            raise ConfigurationError(
                f"{where}.intake: a process connects to queues when it starts, so a managed source cannot have one. "
                f"Define the source in the configuration"
            )
        if settings.forward is not None:
            make_forward(runtime, source, source_forward(source), breakers={}, trusted=False)
            own = [h for h in runtime.handlers if (h.source, h.consumer) == (name, MAIN) and not h.forwards_to]
            if own:
                raise ConfigurationError(f"{where}.forward: {own[0].name} already handles events of that source")
        if settings.email:
            from oncehook.email.projection import EmailProjection  # only sources with `email` need it

            EmailProjection(runtime.email.policy).add(name, source.provider_name, natural=False)
        return source

    def _remove(self, name: str) -> None:
        """Stop receiving. The handlers stay, for the events that were accepted before."""
        if name in self._built:
            self._built.discard(name)
            self.runtime.sources.pop(name, None)
            self.runtime.tenants.pop(name, None)

    def _keep_horizon(self, row: ManagedSource) -> None:
        """Prune the events of a removed source as before."""
        if row.name not in self.runtime.sources:
            own_providers = self.runtime.configuration.providers
            self.runtime.horizons[row.name] = _horizon_of(row, own_providers, self.runtime.settings)


async def managed_horizons(store: Store, own_providers: OwnProviders, settings: Settings) -> list[Horizon]:
    """Return the retention of the managed sources, also of removed ones. Needs no key.

    A source whose provider or settings this process cannot read is left out: its events stay.
    """
    horizons = []
    for row in await store.directory.sources():
        with suppress(ConfigurationError):
            horizons.append(_horizon_of(row, own_providers, settings))
    return horizons


def _horizon_of(row: ManagedSource, own_providers: OwnProviders, settings: Settings) -> Horizon:
    source = read_source(row.name, json.loads(row.settings))
    return horizon(row.name, source, providers.find(source.provider or row.name, own_providers), settings)


def settings_of(row: ManagedSource, secrets: ManagedSecrets, now: str) -> SourceSettings:
    """Return the settings of a managed source with the secrets that are active. Raises ConfigurationError."""
    values = [secret.value for secret in secrets.active(now)]
    return read_source(row.name, {**json.loads(row.settings), **secrets.settings, "secrets": values})


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that are stored as they are, and those that are sealed."""
    plain = {name: value for name, value in settings.items() if name not in PRIVATE}
    return plain, {name: value for name, value in settings.items() if name in PRIVATE}


async def check_sealing_keys(store: Store) -> None:
    """Raise ConfigurationError if a key is missing or wrong that sealed the secrets of a source or tenant."""
    missing = sorted(key for key in await store.directory.sealing_keys() if key not in store.keys)
    if missing:
        raise ConfigurationError(
            f"the database has secrets of sources or tenants that the key {missing[0]} encrypted, and keys "
            f"(ONCEHOOK_KEYS) does not have it: add this key"
        )
    check_proofs(store, await store.encrypted_rows.registered())


def defined_twice(name: str) -> str:
    """The message for a managed source whose name the configuration or the code also uses."""
    return (
        f"sources.{name} is defined twice: in the configuration or in code, and in the database. Remove one of them, "
        f"the one in the database with `oncehook sources remove {name}`"
    )


def _keep_uses(before: Source, after: Source) -> None:
    """Copy the counts that are not written yet, for the secrets that both have."""
    for fingerprint, uses in zip(before.fingerprints, before.uses, strict=True):
        if fingerprint in after.fingerprints:
            after.uses[after.fingerprints.index(fingerprint)] += uses
