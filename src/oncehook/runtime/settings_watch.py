"""Watches the settings that are in the database: consumers, and the sources and tenants that Oncehook manages.

Every change increments the settings revision. Each process queries that number once a second, and reads the changed
rows only if the number changed. The same loop compares the identity of the database (`store.identities`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.store.identity import Identity
from oncehook.store.store import Store

INTERVAL = 1.0
"""Seconds between two queries of the revision."""

UNKNOWN = -1
"""The revision before the first call of a listener: it reads all rows."""

Listener = Callable[[int], Awaitable[None]]
"""Reads the rows whose revision is greater than the number that it gets."""


class SettingsWatch:
    """Calls its listeners when a setting in the database has changed.

    A listener gets the revision up to which it has read the rows. It is called with UNKNOWN when the inbox starts, and
    after the identity of the database changed by a failover or a restored backup. If it raises, it is called again with
    the same number a second later, so it must accept rows that it has already read.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read_up_to: dict[Listener, int] = {}
        self._every_second: list[Callable[[], None]] = []
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_available = True
        self._identity_changes = 0
        store.identities.on_identity_change(self._read_again)

    def add(self, listener: Listener, *, every_second: Callable[[], None] | None = None) -> None:
        """Call `listener` when the inbox starts, and after each change. Call `every_second` while the inbox runs."""
        self._read_up_to[listener] = UNKNOWN
        if every_second is not None:
            self._every_second.append(every_second)

    async def load(self) -> None:
        """Call every listener, when the inbox starts. Raises what a listener raises."""
        self._lock = asyncio.Lock()  # the inbox may start in another event loop than before
        self._read_up_to = dict.fromkeys(self._read_up_to, UNKNOWN)
        await self.store.identities.start()
        await self.refresh()

    def start(self) -> None:
        self._is_available = True
        self._task = asyncio.create_task(self._keep_refreshing())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _read_again(self, identity: Identity) -> None:
        """Make every listener read all rows: two histories can have the same revision with other rows."""
        self._identity_changes += 1
        self._read_up_to = dict.fromkeys(self._read_up_to, UNKNOWN)
        signals.emit("database_identity_changed", detail=identity.name)

    async def refresh(self) -> None:
        """Query the identity of the database and the revision now, and call the listeners that have not read it.

        Raises the first error of a listener after all were called: one that fails does not stop the others.
        """
        errors: list[Exception] = []
        async with self._lock:
            await self.store.identities.check()
            changes, number = self._identity_changes, await self.store.directory.revision()
            for listener, read_up_to in list(self._read_up_to.items()):
                if read_up_to == number:
                    continue
                try:
                    await listener(read_up_to if read_up_to < number else UNKNOWN)
                    if changes == self._identity_changes:
                        self._read_up_to[listener] = number
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                for call in self._every_second:
                    call()
                await self.refresh()
            except Unavailable as error:
                if self._is_available:
                    signals.emit("settings_database_unavailable", detail=error.detail)
                self._is_available = False
            except Exception as error:
                signals.log_background_failure("settings watch", error)
            else:
                self._is_available = True
