"""The read replica, as a part of a running inbox: checks every second how far it is behind."""

import asyncio
from typing import TYPE_CHECKING

from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.observability import signals
from oncehook.store import make_standby
from oncehook.store.replica import ReplicaDatabase, ReplicaMonitor
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

INTERVAL = 1.0
"""Seconds between two checks."""


def store_to_show(runtime: "Runtime") -> Store:
    """Return the store for what a page only shows: of the read replica, if one is configured."""
    return runtime.all_shards if runtime.replica is None else runtime.replica.store


class ReadReplica:
    """Lets the pages that only show data read from `read_database`. If it is down or behind, they read the primary."""

    def __init__(self, runtime: "Runtime") -> None:
        if runtime.shards is not None:
            raise ConfigurationError(
                "read_database cannot be used with shards: the dashboard reads all of their databases"
            )
        self._runtime = runtime
        self._standby = make_standby(runtime.settings)
        self.monitor = ReplicaMonitor(runtime.settings.read_max_lag, runtime.clock)
        self.store = Store(ReplicaDatabase(runtime.store.database, self._standby, self.monitor))
        self._task: asyncio.Task[None] | None = None
        self._was_usable = True

    async def start(self) -> None:
        await self._standby.open()
        await self.check()
        self._runtime.replica = self
        self._task = asyncio.create_task(self._keep_checking())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._runtime.replica = None
        await self.store.close()

    async def check(self) -> None:
        """Compare the positions of the primary and of the standby."""
        asked_at = self._runtime.clock.monotonic()
        try:
            primary = await self._standby.primary_position(self._runtime.store.database.executor)
            self.monitor.record(asked_at, primary, await self._standby.position())
        except Unavailable as error:
            self.monitor.fail(error.detail)
        lag = self.monitor.lag
        is_usable = lag is not None and lag <= self.monitor.max_lag
        if is_usable and not self._was_usable:
            signals.emit("replica_used", detail=self.monitor.state)
        elif self._was_usable and not is_usable:
            signals.emit("replica_not_used", detail=self.monitor.state)
        self._was_usable = is_usable

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.check()
            except Exception as error:
                signals.log_background_failure("read replica", error)
