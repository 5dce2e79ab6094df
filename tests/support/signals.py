"""Named signals: a test waits for the moment in which the code under test reaches a checkpoint.

`oncehook.observability.checkpoints` lists the names. In production there is no listener.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from oncehook.observability import checkpoints
from oncehook.observability.checkpoints import Checkpoint


class Signals:
    """Counts the checkpoints of this process, and wakes tests that wait for one."""

    def __init__(self) -> None:
        self._counts: Counter[Checkpoint] = Counter()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def reach(self, checkpoint: Checkpoint) -> None:
        """Called by the code under test, in any thread."""
        self._counts[checkpoint] += 1
        for event, loop in list(self._waiting.items()):
            with suppress(RuntimeError):  # the loop of an earlier test is closed
                loop.call_soon_threadsafe(event.set)

    def count(self, checkpoint: Checkpoint) -> int:
        return self._counts[checkpoint]

    async def next(self, seconds: float) -> None:
        """Wait for the next checkpoint of any name, at most this long."""
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiting[event]

    async def wait_for(self, checkpoint: Checkpoint, times: int = 1, *, within: float = 30.0) -> None:
        """Wait until the checkpoint is reached this often from now on."""
        goal = self._counts[checkpoint] + times
        try:
            async with asyncio.timeout(within):
                while self._counts[checkpoint] < goal:
                    await self.next(within)
        except TimeoutError:
            raise AssertionError(f"expected within {within:g} s: {checkpoint} is reached {times} times") from None


SIGNALS = Signals()
checkpoints.listener = SIGNALS.reach
