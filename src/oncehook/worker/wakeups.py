"""Wake-ups across processes. A wake-up is only a hint: every worker also polls for due receipts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.store.protocols import WakeupStore

MIN_INTERVAL = 0.05
"""Seconds between two notifications, at least. Under load, one notification covers many commits."""

FIRST_PAUSE, MAX_PAUSE = 0.1, 10.0


def no_announcement() -> None:
    """The default for `announce`: does nothing."""


class Announcer:
    """Notifies other processes in the background that receipts may be due.

    At most one notification is being sent. Announcements during that time share the next notification.
    """

    def __init__(self, wakeups: WakeupStore) -> None:
        self.wakeups = wakeups
        self._is_requested = False
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def announce(self) -> None:
        if not self.wakeups.is_on:
            return
        self._is_requested = True
        if self._task is None:
            self._task = asyncio.create_task(self._notify())

    async def stop(self) -> None:
        """Send the last notification, but do not wait long for a database that does not respond."""
        self._hurry.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=1.0)  # cancelled only if it is late
            for task in late:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = None
        self._hurry.clear()

    async def _notify(self) -> None:
        while self._is_requested:
            self._is_requested = False
            try:
                await self.wakeups.notify()
            except Exception as error:  # only a hint was lost: other workers poll
                signals.log_background_failure("notify", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), MIN_INTERVAL)
        self._task = None


async def keep_listening(wakeups: WakeupStore, wake: Callable[[], None]) -> None:
    """Call `wake` for each notification of another process. Listen again when the connection is lost."""
    pause = FIRST_PAUSE

    def on_notification() -> None:
        nonlocal pause
        pause = FIRST_PAUSE
        wake()

    while True:
        try:
            await wakeups.listen(on_notification)
            return  # this database has no notifications: the worker polls
        except Unavailable as error:
            if pause == FIRST_PAUSE:
                signals.emit("wakeup_connection_lost", detail=error.detail)
        except Exception as error:
            signals.log_background_failure("listen", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
