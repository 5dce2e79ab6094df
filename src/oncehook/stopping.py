"""How work that is under way is ended: it has its grace, then it is cancelled, and what it held goes back uncounted."""

import asyncio
from collections.abc import Collection
from typing import Any


def is_stopping() -> bool:
    """Whether we end this task. A user's function may raise CancelledError for its own reasons: that is a failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end(running: Collection["asyncio.Task[Any]"], grace: float) -> None:
    """Let tasks finish within so many seconds, and cancel those that do not."""
    if running:
        _, late = await asyncio.wait(running, timeout=grace)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
