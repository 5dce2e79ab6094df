"""Consumers in the database: the durable subscriptions that processes have registered."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oncehook.model.event import MAIN
from oncehook.model.rows import StoredConsumer
from oncehook.store.decode import decode
from oncehook.store.directory import next_revision
from oncehook.store.executor import Executor, Run

Subscribed = tuple[str, str]
"""(consumer, source)"""


FROM_SETTINGS = "oncehook.toml"
"""The actor of a pause that the setting `paused` made."""


class SqlConsumerStore:
    """Implements `ConsumerStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def all(self) -> list[StoredConsumer]:
        return [row for row in await self._registered() if row.name != MAIN]

    async def of_main(self) -> list[StoredConsumer]:
        return [row for row in await self._registered() if row.name == MAIN]

    async def _registered(self) -> list[StoredConsumer]:
        return decode(await self._executor.read("consumers"), StoredConsumer)

    async def register(
        self,
        patterns: Mapping[Subscribed, Sequence[str]],
        settings: Mapping[str, Mapping[str, Any]],
        *,
        overwrite: bool = True,
    ) -> bool:
        wanted = {key: (list(of_source), dict(settings.get(key[0], {}))) for key, of_source in patterns.items()}
        if not wanted:
            return False
        names = {"names": json.dumps(sorted({name for name, _ in wanted}))}
        if not _changed(await self._registered(), wanted, overwrite):
            await self._executor.write("renew_consumers", names)
            return False

        async def work(run: Run) -> bool:
            revision = await next_revision(run)
            before = decode(await run("consumers", {}), StoredConsumer)
            changed = _changed(before, wanted, overwrite)
            for (name, source), (of_source, of_consumer) in sorted(changed.items()):
                definition = {"patterns": json.dumps(of_source), "settings": json.dumps(of_consumer)}
                await run("put_consumer", {"name": name, "source": source, **definition, "revision": revision})
            await run("renew_consumers", names)
            await _apply_paused(run, before, {name: of_consumer for (name, _), (_, of_consumer) in changed.items()})
            return bool(changed)

        return await self._executor.transaction(work)

    async def open_receipts(self, name: str, most: int) -> dict[str, int]:
        rows = await self._executor.read("open_receipt_counts", {"name": name, "limit": most})
        return {row["status"]: row["receipts"] for row in rows}

    async def remove(self, name: str, actor: str) -> list[str]:
        async def work(run: Run) -> list[str]:
            await next_revision(run)
            sources = sorted(row["source"] for row in await run("remove_consumer", {"name": name}))
            for statement in ("remove_consumer_handlers", "remove_consumer_rate", "remove_consumer_pause"):
                await run(statement, {"name": name})
            detail = json.dumps({"consumer": name, "sources": sources})
            await run("audit", {"actor": actor, "action": "remove_consumer", "detail": detail})
            return sources

        return await self._executor.transaction(work)

    async def end_receipts(self, name: str, reason: str, size: int) -> int:
        return len(await self._executor.write("end_receipts", {"name": name, "reason": reason, "limit": size}))


async def _apply_paused(run: Run, before: Sequence[StoredConsumer], settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Pause a consumer whose setting `paused` appeared, and resume one whose setting is gone.

    A consumer that a person has resumed stays so while the setting stays. A pause of a person is not ended.
    """
    paused_before = {row.name for row in before if json.loads(row.settings).get("paused")}
    for name in sorted(settings):
        is_paused = bool(settings[name].get("paused"))
        if is_paused != (name in paused_before):
            action, statement = ("pause", "pause") if is_paused else ("resume", "resume_by_actor")
            parameters = {"source": "", "consumer": name, "actor": FROM_SETTINGS, "reason": None, "seconds": None}
            if await run(statement, parameters):
                detail = json.dumps({"consumer": name})
                await run("audit", {"actor": FROM_SETTINGS, "action": action, "detail": detail})


Definition = tuple[list[str], dict[str, Any]]
"""(patterns, settings)"""


def _changed(
    rows: Sequence[StoredConsumer], wanted: Mapping[Subscribed, Definition], overwrite: bool
) -> dict[Subscribed, Definition]:
    """Return the subscriptions to write. Patterns are added, because other processes may have other handlers.

    A subscription to a source that the consumer no longer has keeps its patterns and gets the new settings.
    """
    known = {(row.name, row.source): (json.loads(row.patterns), json.loads(row.settings)) for row in rows}
    changed = {}
    for key, (patterns, own) in wanted.items():
        before = known.get(key)
        union = sorted({*(before[0] if before else ()), *patterns})
        settings = own if before is None or overwrite else before[1]
        if (union, settings) != before:
            changed[key] = union, settings
    latest = {name: own for (name, _), (_, own) in wanted.items()} if overwrite else {}
    for key, (patterns, settings) in known.items():
        if key not in wanted and settings != latest.get(key[0], settings):
            changed[key] = patterns, latest[key[0]]
    return changed
