"""Wake-ups across processes. A wake-up is a hint: a worker that gets none looks by itself, every `poll`."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.store.protocols import WakeupStore

APART = 0.05
"""Seconds between two notifications, at least: under load one speaks for many commits."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


class Announcer:
    """Tells other processes that something may be due, aside: nobody waits for it.

    One notification is under way at most, and one is wanted: whatever is announced meanwhile is in that.
    """

    def __init__(self, wakeups: WakeupStore) -> None:
        self.wakeups = wakeups
        self._wanted = False
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def announce(self) -> None:
        if not self.wakeups.is_on:
            return
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._notify())

    async def stop(self) -> None:
        """Say what may still be to be said, but do not wait for a database that does not answer."""
        self._hurry.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=1.0)  # cut off in the middle only if it must be
            for task in late:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = None
        self._hurry.clear()

    async def _notify(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self.wakeups.notify()
            except Exception as error:  # it was a hint: whoever was to be told looks by itself
                signals.log_background_failure("notify", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), APART)
        self._task = None


async def keep_listening(wakeups: WakeupStore, wake: Callable[[], None]) -> None:
    """Call `wake` when another process announces something; when the connection is lost, listen again."""
    pause = FIRST_PAUSE

    def heard() -> None:
        nonlocal pause
        pause = FIRST_PAUSE
        wake()

    while True:
        try:
            await wakeups.listen(heard)
            return  # there is no way to be told: `poll` is all there is
        except Unavailable as error:
            if pause == FIRST_PAUSE:
                signals.emit("wakeup_connection_lost", detail=error.detail)
        except Exception as error:
            signals.log_background_failure("listen", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
