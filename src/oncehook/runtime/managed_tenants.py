"""Managed tenants: running processes notice a change of a tenant within a second."""

from typing import TYPE_CHECKING

from oncehook.model.tenant import TenantLimits
from oncehook.providers.source import Source
from oncehook.runtime.managed_sources import ManagedSources
from oncehook.runtime.settings_watch import UNKNOWN
from oncehook.tenants.cache import TenantCache, make_cache
from oncehook.tenants.lookup import SecretsFor
from oncehook.tenants.managed import ManagedLookup

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

MAX_DISCARDED = 1000
"""If more tenants than this changed since the last query, the process forgets all cached tenants."""


class ManagedTenants:
    """Forgets the cached tenants that changed. The next delivery of each looks it up."""

    def __init__(self, runtime: "Runtime") -> None:
        self.runtime = runtime
        runtime.settings_watch.add(self.read)

    async def read(self, previous: int) -> None:
        caches = {name: cache for name, cache in self.runtime.tenants.items() if is_managed(cache)}
        if not caches:
            return
        changed = [] if previous == UNKNOWN else await self._changed_after(previous)
        if previous == UNKNOWN or len(changed) > MAX_DISCARDED:
            for cache in caches.values():
                cache.clear()
        for source, tenant in changed:
            if source in caches:
                caches[source].discard(tenant)

    async def _changed_after(self, revision: int) -> list[tuple[str, str]]:
        rows = await self.runtime.store.directory.changed_tenants(revision, MAX_DISCARDED + 1)
        return [(row.source, row.tenant) for row in rows]


def make_managed_sources(runtime: "Runtime") -> ManagedSources:
    """Watch the managed sources and tenants of an inbox. The sources are read first."""
    sources = ManagedSources(runtime)
    ManagedTenants(runtime)
    return sources


def make_tenant_cache(runtime: "Runtime", source: Source, secrets_for: SecretsFor | None) -> TenantCache:
    """Make the cache of a source with tenants. Without a function of the user, Oncehook manages them."""
    if secrets_for is not None:
        return make_cache(source, secrets_for, runtime.clock)
    lookup = ManagedLookup(source.name, runtime.store, runtime.clock)
    return TenantCache(source, lookup, source.settings.tenants or TenantLimits(), runtime.clock)


def is_managed(cache: TenantCache) -> bool:
    """Return whether Oncehook manages the tenants of a cache."""
    return isinstance(cache.lookup, ManagedLookup)
