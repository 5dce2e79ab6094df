"""Pauses of sources and consumers, and the backlog that a worker must skip."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from oncehook.concurrency.clock import Clock
from oncehook.model.event import MAIN
from oncehook.model.patterns import Handled, matchers
from oncehook.model.rows import DueWindow, EndedPause, Pause, PauseState
from oncehook.store.backlog import Backlog
from oncehook.store.decode import decode
from oncehook.store.dialect import Dialect
from oncehook.store.executor import Executor, Run

AUTOMATIC = "oncehook"
"""The actor in the audit log when a pause ends by its time."""


class SqlPauseStore:
    """Implements `PauseStore` on every database."""

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        consumer: str = MAIN,
        has_tenants: Callable[[], bool] = lambda: False,
    ) -> None:
        self._executor = executor
        self.has_tenants = has_tenants  # whether the backlog leaves out the events of tenants
        self.consumer = consumer  # whose backlog this is
        self.backlog = Backlog(clock, executor.dialect.earliest)

    async def pause(
        self, source: str, actor: str, *, consumer: str = "", reason: str | None = None, seconds: float | None = None
    ) -> bool:
        parameters = {"source": source, "consumer": consumer, "actor": actor, "reason": reason, "seconds": seconds}
        detail = {"source": source or None, "consumer": consumer or None, "reason": reason, "seconds": seconds}
        return await self._change(
            "pause", parameters, {name: value for name, value in detail.items() if value is not None}
        )

    async def resume(self, source: str, actor: str, *, consumer: str = "") -> bool:
        parameters = {"source": source, "consumer": consumer, "actor": actor}
        return await self._change("resume", parameters, paused_detail(source, consumer))

    async def active(self) -> list[Pause]:
        return decode(await self._executor.read("pauses"), Pause)

    async def refresh(self, handled: Handled | None) -> None:
        """Refresh the backlog, at most once a second."""

        async def window(after: str, size: int) -> DueWindow:
            parameters = {"after": after, "size": size, "consumer": self.consumer}
            parameters |= handled_parameters(self._executor.dialect, handled)
            if self.has_tenants():
                parameters["tenant"] = ""
            return decode(await self._executor.read("due_window", parameters), DueWindow)[0]

        await self.backlog.refresh(self._sources, window, handled, has_tenants=self.has_tenants())

    async def _change(self, name: str, parameters: Mapping[str, Any], detail: dict[str, Any]) -> bool:
        async def work(run: Run) -> bool:
            changed = await run(name, parameters)
            if changed:
                await run("audit", {"actor": parameters["actor"], "action": name, "detail": json.dumps(detail)})
            return bool(changed)

        changed = await self._executor.transaction(work)
        self.backlog.invalidate()
        return changed

    async def _sources(self) -> list[str]:
        rows = decode(await self._executor.read("pause_states"), PauseState)
        if any(row.is_over for row in rows):
            await self._executor.transaction(_end_pauses)
        return [row.source for row in rows if row.source and not row.is_over]


async def _end_pauses(run: Run) -> None:
    """Remove the pauses whose time is over, and record it in the audit log."""
    for row in decode(await run("end_pauses", {}), EndedPause):
        detail = json.dumps({**paused_detail(row.source, row.consumer), "ended_at": row.ends_at})
        await run("audit", {"actor": AUTOMATIC, "action": "resume", "detail": detail})


def paused_detail(source: str, consumer: str) -> dict[str, str]:
    """Return what was paused, as in the audit log."""
    return {"consumer": consumer} if consumer else {"source": source}


def handled_parameters(dialect: Dialect, handled: Handled | None) -> dict[str, Any]:
    """Return the parameters of the fragment `handled_here`. None means that this process handles all types."""
    if handled is None:
        return {"handled": dialect.texts([dialect.pattern("*")]), "projected": dialect.texts([])}
    patterns = matchers(handled, dialect.pattern)
    return {"handled": dialect.texts(patterns), "projected": dialect.texts(sorted(handled.projected))}
