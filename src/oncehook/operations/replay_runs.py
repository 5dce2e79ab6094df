"""Replays of many, started from the dashboard: they run on while the page is closed, and the audit has how far.

A run belongs to the process that started it. When that ends, whole batches are done and the rest is as it was: starting
it again goes on with what is left. How far it is can be asked of any process, because every batch records itself.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from oncehook.model.errors import OncehookError
from oncehook.operations.replay import Outcomes, Replayed, begin_run, bounded, outcomes, replay
from oncehook.store.rows import Selection
from oncehook.store.store import Store

SHOWN = 100
"""Finished runs that this process remembers."""


@dataclass(slots=True)
class Run:
    """A replay of many, as it stands."""

    run: str
    actor: str
    matched: int
    done: Replayed
    state: str = "running"  # or "done", "stopped"
    error: str | None = None
    started_at: str | None = None
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state != "running" and not self.outcomes.waiting

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "actor": self.actor,
            "state": self.state,
            "matched": self.matched,
            "looked_at": self.done.matched,
            "replayed": self.done.count,
            **self.outcomes.as_json(),
            "left": dict(sorted(self.done.left.items())),
            "error": self.error,
            "started_at": self.started_at,
        }


class Runs:
    """The replays that this process was asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, selection: Selection, actor: str, matched: int, rate: float | None = None) -> Run:
        """Record it, then work it off in the background."""
        selection = await bounded(self.store, selection)
        name = await begin_run(self.store, selection, actor, matched=matched)
        run = Run(name, actor, matched, Replayed())
        self._runs[run.run] = run
        for old in [one.run for one in self._runs.values() if one.state != "running"][:-SHOWN]:
            del self._runs[old]
        task = asyncio.create_task(self._work(run, selection, rate))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def get(self, run: str) -> Run | None:
        """A run of this process, or as the audit has it of another."""
        found = self._runs.get(run) or await self._audited(run)
        if found is not None:
            found.outcomes = await outcomes(self.store, run)
        return found

    async def stop(self) -> None:
        """End what runs: whole batches are done, and the audit says so."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, run: Run, selection: Selection, rate: float | None) -> None:
        def progress(done: Replayed) -> None:
            run.done = done

        try:
            run.done = await replay(self.store, selection, actor=run.actor, progress=progress, run=run.run, rate=rate)
            run.state = "done"
        except OncehookError as error:
            run.state, run.error = "stopped", str(error)
        except asyncio.CancelledError:
            run.state, run.error = "stopped", "the service was stopped"
            raise

    async def _audited(self, name: str) -> Run | None:
        rows = {row.action: row for row in await self.store.operations.audited_run(name)}
        started = rows.get("replay_started")
        if started is None:
            return None
        moved = (rows["replay"].number or 0) if "replay" in rows else 0
        matched = json.loads(started.detail or "{}")["matched"]
        run = Run(name, started.actor, moved if matched is None else matched, Replayed())
        run.started_at = started.at
        run.done.replayed["replayed"] = run.done.matched = moved
        if "replay_ended" in rows:
            ended = json.loads(rows["replay_ended"].detail or "{}")
            run.state, run.done.matched = ended["state"], ended["matched"]
            run.done.left.update(ended["left"])
        return run
