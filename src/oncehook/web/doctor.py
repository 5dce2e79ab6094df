"""What is known of refused deliveries and of secrets, for the page of sources: asked for now and then."""

import asyncio
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.operations.doctor import examine
from oncehook.operations.rotation import list_secrets
from oncehook.runtime import Runtime

FRESH = 2.0
"""Seconds for which an answer is as good as a new one."""


class Doctor:
    """The last kept sample of each source with the doctor's word on it, and when each secret was last used."""

    def __init__(self, runtime: Runtime, clock: Clock = SYSTEM) -> None:
        self.runtime = runtime
        self.clock = clock
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._cases: dict[str, dict[str, Any]] = {}
        self._secrets: dict[str, list[dict[str, Any]]] = {}

    async def look(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        """By source: its last refusal, and its secrets."""
        async with self._asking:
            if self.clock.monotonic() - self._asked >= FRESH:
                await self._look()
                self._asked = self.clock.monotonic()
            return self._cases, self._secrets

    async def _look(self) -> None:
        store, sources = self.runtime.store, self.runtime.sources
        cases = dict(self._cases)
        for name in sources:
            newest = await store.rejections.find(name, limit=1)
            if newest and newest[0].id != cases.get(name, {}).get("id"):
                cases |= {case["source"]: case for case in await examine(store, sources, name)}
        rows = list_secrets(list(sources.values()), await store.rejections.secrets_used())
        self._secrets = {name: [row for row in rows if row["source"] == name] for name in sources}
        self._cases = cases
