"""How work that is under way is ended: it has its grace, then it is cancelled, and what it held goes back uncounted."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any


def is_stopping() -> bool:
    """Whether we end this task. A user's function may raise CancelledError for its own reasons: that is a failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Deadline:
    """The one time by which all parts of stopping have ended. It is set by the first of them."""

    def __init__(self) -> None:
        self._by: float | None = None

    async def keep(self, seconds: float, *parts: Coroutine[Any, Any, None]) -> bool:
        """Run parts of stopping side by side, until `seconds` after the first call; False if some were cut off.

        Those are cancelled and not waited for: whatever they wait for does not answer.
        """
        now = asyncio.get_running_loop().time()
        if self._by is None:
            self._by = now + seconds
        tasks = late = {asyncio.create_task(part) for part in parts}
        try:
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=max(0.0, self._by - now))
        finally:  # all of them, if we are cancelled ourselves
            for task in late:
                task.cancel()
        await asyncio.gather(*(tasks - late))  # to raise what they raised
        return not late

    def clear(self) -> None:
        self._by = None


async def end(running: Collection["asyncio.Task[Any]"], grace: float) -> None:
    """Let tasks finish within so many seconds, and cancel those that do not."""
    if running:
        _, late = await asyncio.wait(running, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
