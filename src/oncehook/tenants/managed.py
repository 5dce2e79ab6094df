"""Looks up the secrets of tenants that Oncehook manages: rows of the database, encrypted by the key ring."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.managed_secrets import open_secrets, tenant_context
from oncehook.model.timestamps import rfc3339
from oncehook.store.store import Store
from oncehook.tenants.cache import Lookup


def with_store(lookup: Lookup, store: Store) -> Lookup:
    """A lookup of managed tenants that uses this store, which is open. Any other lookup is returned unchanged."""
    return ManagedLookup(lookup.source, store, lookup.clock) if isinstance(lookup, ManagedLookup) else lookup


class ManagedLookup:
    """Implements `Lookup` with the table of tenants. A tenant that was removed is unknown."""

    def __init__(self, source: str, store: Store, clock: Clock = SYSTEM) -> None:
        self.source = source
        self.store = store
        self.clock = clock

    async def find(self, tenant: str) -> tuple[str, ...] | None:
        """The active secrets of a tenant, or None if it is unknown. Raises StoreUnavailable, KeyMissing or KeyWrong."""
        row = await self.store.directory.tenant(self.source, tenant)
        if row is None or row.removed_at is not None:
            return None
        secrets = open_secrets(self.store.keys, row.secrets, tenant_context(self.source, tenant))
        return tuple(secret.value for secret in secrets.active(rfc3339(self.clock.datetime()) or ""))

    def reset(self) -> None:
        """Do nothing: the store belongs to no event loop before it is opened."""
