"""Consumers in the database: the durable subscriptions that processes have registered."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oncehook.model.rows import StoredConsumer
from oncehook.store.decode import decode
from oncehook.store.directory import next_revision
from oncehook.store.executor import Executor, Run

Subscribed = tuple[str, str]
"""(consumer, source)"""


class SqlConsumerStore:
    """Implements `ConsumerStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def all(self) -> list[StoredConsumer]:
        return decode(await self._executor.read("consumers"), StoredConsumer)

    async def register(
        self, patterns: Mapping[Subscribed, Sequence[str]], settings: Mapping[str, Mapping[str, Any]]
    ) -> bool:
        wanted = {key: (list(of_source), dict(settings.get(key[0], {}))) for key, of_source in patterns.items()}
        if not wanted:
            return False
        names = {"names": json.dumps(sorted({name for name, _ in wanted}))}
        if not _changed(await self.all(), wanted):
            await self._executor.write("renew_consumers", names)
            return False

        async def work(run: Run) -> bool:
            revision = await next_revision(run)
            changed = _changed(decode(await run("consumers", {}), StoredConsumer), wanted)
            for (name, source), (of_source, of_consumer) in sorted(changed.items()):
                definition = {"patterns": json.dumps(of_source), "settings": json.dumps(of_consumer)}
                await run("put_consumer", {"name": name, "source": source, **definition, "revision": revision})
            await run("renew_consumers", names)
            return bool(changed)

        return await self._executor.transaction(work)


Definition = tuple[list[str], dict[str, Any]]
"""(patterns, settings)"""


def _changed(rows: Sequence[StoredConsumer], wanted: Mapping[Subscribed, Definition]) -> dict[Subscribed, Definition]:
    """Return the subscriptions to write. Patterns are added, because other processes may have other handlers."""
    known = {(row.name, row.source): (json.loads(row.patterns), json.loads(row.settings)) for row in rows}
    changed = {}
    for key, (patterns, settings) in wanted.items():
        before, settings_before = known.get(key, ([], None))
        union = sorted({*before, *patterns})
        if union != before or settings != settings_before:
            changed[key] = union, settings
    return changed
