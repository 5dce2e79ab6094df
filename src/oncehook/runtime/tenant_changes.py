"""Changes of people to managed tenants: add, rotate, remove. Each is audited, and needs a key."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncehook.config.keyring import KeyRing, KeyRingError
from oncehook.config.managed_secrets import (
    ManagedSecret,
    ManagedSecrets,
    check_value,
    new_secrets,
    open_secrets,
    tenant_context,
)
from oncehook.model.errors import ConfigurationError
from oncehook.model.nearest import hint
from oncehook.model.rows import ManagedTenant
from oncehook.model.tenant import TENANT_NAME
from oncehook.model.timestamps import rfc3339
from oncehook.providers.source import Source
from oncehook.runtime.managed_changes import GRACE, NameTaken, UnknownName, fingerprints, later, require_key
from oncehook.runtime.managed_tenants import is_managed
from oncehook.store.rows import DirectoryChange, TenantChange
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


class TenantChanges:
    """Changes the managed tenants of one source. Each change is audited, and needs a key."""

    def __init__(self, runtime: "Runtime", store: Store, actor: str, source: str) -> None:
        """Raise ConfigurationError for a source that does not exist or has no managed tenants."""
        self.runtime = runtime
        self.store = store
        self.actor = actor
        self.source = managed_source(runtime, source)

    async def add(self, tenant: str, secrets: Sequence[str]) -> None:
        """Add a tenant. Raises ConfigurationError for a name or a secret that cannot be used."""
        await require_key(self.store)
        name = self.source.name
        if not TENANT_NAME.fullmatch(tenant):
            raise ConfigurationError(
                "the name of a tenant has up to 128 letters, digits, -, _, . and ~, and begins with a letter or digit"
            )
        now = rfc3339(await self.store.operations.now()) or ""
        values = new_secrets(secrets, now)
        self._check(tenant, values, now)
        sealed = values.seal(self.store.keys, tenant_context(name, tenant))

        def change(row: ManagedTenant | None) -> DirectoryChange:
            if row is not None and row.removed_at is None:
                raise NameTaken(f"the source {name} has a tenant {tenant} already: rotate its secret, or remove it")
            detail = {"source": name, "tenant": tenant, "secrets": fingerprints(name, values, now)}
            return DirectoryChange(secrets=sealed, action="add_tenant", detail=detail)

        await self.store.directory.change_tenant(name, tenant, self.actor, change)

    async def rotate(self, tenant: str, secret: str, *, grace: float = GRACE) -> None:
        """Add a secret, and end the older ones after `grace` seconds."""
        await require_key(self.store)
        check_value(secret)

        def change(row: ManagedTenant | None) -> DirectoryChange:
            row = self._existing(tenant, row)
            rotated = open_tenant(self.store.keys, row).rotated(secret, row.now, later(row.now, grace))
            self._check(tenant, rotated, row.now)
            return self._changed(row, rotated, "rotate_tenant", grace_seconds=grace)

        await self._change(tenant, change)

    async def finish(self, tenant: str) -> None:
        """End all secrets of a tenant but the newest."""
        await require_key(self.store)

        def change(row: ManagedTenant | None) -> DirectoryChange:
            row = self._existing(tenant, row)
            return self._changed(row, open_tenant(self.store.keys, row).finished(row.now), "finish_rotation")

        await self._change(tenant, change)

    async def remove(self, tenant: str) -> None:
        """Remove a tenant and erase its secrets. Its events stay."""

        def change(row: ManagedTenant | None) -> DirectoryChange:
            self._existing(tenant, row)
            detail = {"source": self.source.name, "tenant": tenant}
            return DirectoryChange(secrets="", is_removed=True, action="remove_tenant", detail=detail)

        await self._change(tenant, change)

    async def _change(self, tenant: str, change: TenantChange) -> None:
        try:
            await self.store.directory.change_tenant(self.source.name, tenant, self.actor, change)
        except UnknownName:
            near = await self.store.directory.tenants(self.source.name, search=tenant[:1], limit=1000)
            names = [row.tenant for row in near]
            action = hint(tenant, names, "tenants") if names else "list the tenants to see their names"
            raise UnknownName(f"the source {self.source.name} has no managed tenant {tenant}: {action}") from None

    def _existing(self, tenant: str, row: ManagedTenant | None) -> ManagedTenant:
        if row is None or row.removed_at is not None:
            raise UnknownName(tenant)
        return row

    def _check(self, tenant: str, secrets: ManagedSecrets, now: str) -> None:
        """Raise ConfigurationError if a secret cannot be used."""
        values = [secret.value for secret in secrets.active(now)]
        if not values and not self.source.provider.starts_without_secret:
            raise ConfigurationError(f"the tenant {tenant} needs a secret, with which its provider signs")
        self.source.for_tenant(tenant, values)

    def _changed(self, row: ManagedTenant, secrets: ManagedSecrets, action: str, **detail: Any) -> DirectoryChange:
        sealed = secrets.seal(self.store.keys, tenant_context(row.source, row.tenant))
        marks = fingerprints(row.source, secrets, row.now)
        recorded = {"source": row.source, "tenant": row.tenant, "secrets": marks, **detail}
        return DirectoryChange(secrets=sealed, action=action, detail=recorded)


def managed_source(runtime: "Runtime", name: str) -> Source:
    """Return a source with managed tenants. Raises ConfigurationError for any other."""
    source = runtime.sources.get(name)
    if source is None:
        raise UnknownName(f"there is no source {name}: {hint(name, runtime.sources, 'sources')}")
    cache = runtime.tenants.get(name)
    if cache is None:
        raise ConfigurationError(f"sources.{name} has no tenants: set tenants = true, or choose another source")
    if not is_managed(cache):
        raise ConfigurationError(f"sources.{name} looks its tenants up with secrets_for: change them there")
    return source


def open_tenant(keys: KeyRing, row: ManagedTenant) -> ManagedSecrets:
    """Decrypt the secrets of a tenant. Raises ConfigurationError if a key is missing or wrong."""
    try:
        return open_secrets(keys, row.secrets, tenant_context(row.source, row.tenant))
    except KeyRingError as error:
        raise ConfigurationError(f"the secrets of {row.source}/{row.tenant} cannot be read: {error}") from None


def tenant_row(keys: KeyRing, row: ManagedTenant) -> dict[str, Any]:
    """Return a tenant as the command line, the API and the dashboard list it: fingerprints, never secrets.

    If the secrets cannot be decrypted, `problem` says why.
    """
    secrets, problem = _readable(keys, row)
    marks = fingerprints(row.source, ManagedSecrets(secrets), row.now)
    return {
        "source": row.source,
        "tenant": row.tenant,
        "secrets": [
            {"fingerprint": mark, "added_at": secret.added_at, "ends_at": secret.ends_at}
            for mark, secret in zip(marks, secrets, strict=True)
        ],
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "actor": row.actor,
        "problem": problem,
    }


def _readable(keys: KeyRing, row: ManagedTenant) -> tuple[tuple[ManagedSecret, ...], str | None]:
    try:
        return open_tenant(keys, row).active(row.now), None
    except ConfigurationError as error:
        return (), str(error)
