"""The directory: settings that are in the database, so that they change while processes run.

These are the consumers, and the sources and tenants that Oncehook manages. Each change increments one number, the
settings revision, and stores it in the changed row. Every process queries the number once a second.
"""

import json
from collections.abc import Mapping
from typing import Any

from oncehook.model.rows import ChangedTenant, ManagedSource, ManagedTenant
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import DirectoryChange, SourceChange, TenantChange


async def next_revision(run: Run) -> int:
    """Increment the settings revision in the running transaction, and return it.

    Every change calls it first: it locks the number until the transaction ends, so that changes are serialized and
    their revisions become visible in order.
    """
    number: int = (await run("next_settings_revision", {}))[0]["number"]
    return number


class SqlDirectoryStore:
    """Implements `DirectoryStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def revision(self) -> int:
        number: int = (await self._executor.read("settings_revision"))[0]["number"]
        return number

    async def sources(self, after: int = -1) -> list[ManagedSource]:
        return decode(await self._executor.read("managed_sources", {"after": after}), ManagedSource)

    async def change_source(self, name: str, actor: str, change: SourceChange) -> int:
        async def work(run: Run) -> int:
            revision = await next_revision(run)
            rows = decode(await run("managed_sources", {"after": -1, "name": name}), ManagedSource)
            changed = change(rows[0] if rows else None)
            parameters = {"name": name, "settings": changed.settings or "{}"}
            await _put(run, "put_source", parameters, changed, revision=revision, actor=actor)
            if changed.is_removed:
                await run("remove_tenants", {"source": name, "revision": revision, "actor": actor})
            return revision

        return await self._executor.transaction(work)

    async def tenant(self, source: str, tenant: str) -> ManagedTenant | None:
        rows = await self._executor.read("managed_tenant", {"source": source, "tenant": tenant})
        return next(iter(decode(rows, ManagedTenant)), None)

    async def tenants(self, source: str, *, search: str = "", after: str = "", limit: int) -> list[ManagedTenant]:
        parameters = {"source": source, "after": after, "limit": limit} | ({"search": search} if search else {})
        return decode(await self._executor.read("managed_tenants", parameters), ManagedTenant)

    async def changed_tenants(self, after: int, limit: int) -> list[ChangedTenant]:
        return decode(await self._executor.read("changed_tenants", {"after": after, "limit": limit}), ChangedTenant)

    async def change_tenant(self, source: str, tenant: str, actor: str, change: TenantChange) -> int:
        parameters = {"source": source, "tenant": tenant}

        async def work(run: Run) -> int:
            revision = await next_revision(run)
            rows = decode(await run("managed_tenant", parameters), ManagedTenant)
            changed = change(rows[0] if rows else None)
            await _put(run, "put_tenant", parameters, changed, revision=revision, actor=actor)
            return revision

        return await self._executor.transaction(work)

    async def sealing_keys(self) -> set[str]:
        return {row["key"] for row in await self._executor.scan("sealing_keys")}


async def _put(
    run: Run, name: str, key: Mapping[str, Any], changed: DirectoryChange, *, revision: int, actor: str
) -> None:
    """Write a row, and audit the actor."""
    row = {"secrets": changed.secrets, "is_removed": changed.is_removed, "revision": revision, "actor": actor}
    await run(name, {**key, **row})
    await run("audit", {"actor": actor, "action": changed.action, "detail": json.dumps(changed.detail)})
