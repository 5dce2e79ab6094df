"""Replays that run in the background of the dashboard's process. The audit log records their progress.

A run belongs to the process that started it. If that process ends, whole batches are done and the rest is unchanged;
the same replay started again continues with the rest. Every process can show the progress, because each batch is
recorded in the database.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from oncehook.model.errors import OncehookError
from oncehook.operations.replay import Outcomes, Replayed, begin_run, replay, run_outcomes, with_horizon
from oncehook.store.rows import Selection
from oncehook.store.store import Store

FINISHED_RUNS = 100
"""The number of finished runs that this process remembers."""


@dataclass(slots=True)
class ReplayRun:
    """The progress of a background replay."""

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
        """Whether the replay has ended and all its events are finished."""
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


class ReplayRuns:
    """The background replays of this process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._runs: dict[str, ReplayRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, selection: Selection, actor: str, matched: int, rate: float | None = None) -> ReplayRun:
        """Record the start of a replay, then run it in the background."""
        selection = await with_horizon(self.store, selection)
        name = await begin_run(self.store, selection, actor, matched=matched)
        run = ReplayRun(name, actor, matched, Replayed())
        self._runs[run.run] = run
        for old in [run.run for run in self._runs.values() if run.state != "running"][:-FINISHED_RUNS]:
            del self._runs[old]
        task = asyncio.create_task(self._replay(run, selection, rate))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def get(self, run: str) -> ReplayRun | None:
        """Return a run of this process, or read the run of another process from the audit log."""
        progress = self._runs.get(run) or await self._read_audit(run)
        if progress is not None:
            progress.outcomes = await run_outcomes(self.store, run)
        return progress

    async def stop(self) -> None:
        """Stop all runs. Whole batches are done, and the audit log records them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _replay(self, run: ReplayRun, selection: Selection, rate: float | None) -> None:
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

    async def _read_audit(self, name: str) -> ReplayRun | None:
        rows = {row.action: row for row in await self.store.operations.audited_run(name)}
        started = rows.get("replay_started")
        if started is None:
            return None
        moved = (rows["replay"].number or 0) if "replay" in rows else 0
        matched = json.loads(started.detail or "{}")["matched"]
        run = ReplayRun(name, started.actor, moved if matched is None else matched, Replayed())
        run.started_at = started.at
        run.done.replayed["replayed"] = run.done.matched = moved
        if "replay_ended" in rows:
            ended = json.loads(rows["replay_ended"].detail or "{}")
            run.state, run.done.matched = ended["state"], ended["matched"]
            run.done.left.update(ended["left"])
        return run
