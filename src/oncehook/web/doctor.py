"""The doctor's findings on rejected deliveries and the use of secrets, cached for the page of sources."""

import asyncio
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.operations.doctor import examine
from oncehook.operations.rotation import list_secrets
from oncehook.providers.source import Source
from oncehook.runtime import Runtime

MAX_AGE = 2.0
"""Seconds after which the cache is refreshed."""


class DiagnosisCache:
    """The newest rejection sample of each source with the doctor's findings, and when each secret was last used."""

    def __init__(self, runtime: Runtime, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.clock = clock
        self._lock = asyncio.Lock()
        self._refreshed = float("-inf")
        self._cases: dict[str, dict[str, Any]] = {}
        self._secrets: dict[str, list[dict[str, Any]]] = {}
        self._sources: dict[str, Source] = {}

    async def get(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        """Return two mappings by source: its newest rejection sample, and its secrets."""
        async with self._lock:
            is_changed = self._sources != self.runtime.sources  # a managed source was added, rotated or removed
            if is_changed or self.clock.monotonic() - self._refreshed >= MAX_AGE:
                await self._refresh()
                self._refreshed = self.clock.monotonic()
            return self._cases, self._secrets

    async def _refresh(self) -> None:
        store, sources = self.runtime.store, dict(self.runtime.sources)
        cases = dict(self._cases)
        for name in sources:
            newest = await store.rejections.find(name, limit=1)
            if newest and newest[0].id != cases.get(name, {}).get("id"):
                lookups = {name: cache.lookup for name, cache in self.runtime.tenants.items()}
                cases |= {case["source"]: case for case in await examine(store, sources, name, lookups=lookups)}
        rows = list_secrets(list(sources.values()), await store.rejections.secrets_used())
        self._secrets = {name: [row for row in rows if row["source"] == name] for name in sources}
        self._cases, self._sources = cases, sources
