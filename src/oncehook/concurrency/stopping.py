"""Graceful shutdown: running tasks get a grace period, then they are cancelled and release what they hold."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any


def is_stopping() -> bool:
    """Whether Oncehook cancels this task. A CancelledError that a user's function raises itself is a failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Deadline:
    """One deadline that all steps of a shutdown share. The first step sets it."""

    def __init__(self) -> None:
        self._deadline: float | None = None

    async def run(self, seconds: float, *steps: Coroutine[Any, Any, None]) -> bool:
        """Run shutdown steps concurrently, until `seconds` after the first call. Returns False if some were late.

        Late steps are cancelled and not awaited: whatever they wait for does not respond.
        """
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + seconds
        tasks = late = {asyncio.create_task(step) for step in steps}
        try:
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=max(0.0, self._deadline - now))
        finally:  # all of them, if this coroutine is cancelled
            for task in late:
                task.cancel()
        await asyncio.gather(*(tasks - late))  # to raise the errors of the steps
        return not late

    def clear(self) -> None:
        self._deadline = None


async def finish_or_cancel(running: Collection["asyncio.Task[Any]"], grace: float) -> None:
    """Let tasks finish within `grace` seconds, and cancel those that do not."""
    if running:
        _, late = await asyncio.wait(running, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
