"""The background tasks of a process with workers: the relay, wake-ups, pruning, alerts and rescues."""

import asyncio
from typing import TYPE_CHECKING

from oncehook.effects.relay import Relay
from oncehook.operations.prune import PruneLoop, effect_horizon
from oncehook.worker.rescue import keep_rescuing
from oncehook.worker.wakeups import keep_listening

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


class BackgroundTasks:
    """Starts the background tasks of a worker, and stops all of them except the relay, which stops with the work."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._prune_loop: PruneLoop | None = None
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> Relay:
        """Start all tasks. Returns the relay."""
        runtime, settings = self._runtime, self._runtime.settings
        relay = Relay(runtime.store, runtime.effects, concurrency=settings.concurrency, poll=settings.poll)
        relay.start()
        effect_retention = effect_horizon(settings, runtime.horizons.values())
        prune_email = None if settings.email_retention is None else runtime.email.prune
        self._prune_loop = PruneLoop(
            runtime.store, runtime.horizons.values(), effects=effect_retention, email=prune_email
        )
        self._prune_loop.start()
        runtime.alerts.start()
        every, elsewhere = settings.lease / 3, runtime.roster.is_handled_elsewhere
        rescuing = keep_rescuing(runtime.store, runtime.handlers, runtime.sources, every, elsewhere)
        listening = keep_listening(runtime.store.wakeups, runtime.wake_worker)
        self._loops = [asyncio.create_task(rescuing), asyncio.create_task(listening)]
        return relay

    async def stop(self) -> None:
        """Stop the tasks that were started."""
        loops, self._loops = self._loops, []
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        prune_loop, self._prune_loop = self._prune_loop, None
        if prune_loop is not None:
            await prune_loop.stop()
        if "alerts" in vars(self._runtime):
            await self._runtime.alerts.stop()
