"""Runs work in batches: the first item starts a batch immediately, and items that arrive during it share the next."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batches(Generic[T]):
    """Passes items to `run` in batches of at most `size`, one batch at a time. `run` must not raise."""

    def __init__(self, run: Callable[[list[T]], Awaitable[None]], *, size: int = 1_000) -> None:
        self._run = run
        self._size = size
        self._waiting: list[T] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of items that wait for the next batch."""
        return len(self._waiting)

    def add(self, item: T) -> None:
        """Add an item to the next batch. Never waits."""
        self._waiting.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run_all())

    async def drain(self) -> None:
        """Wait until no item waits and no batch runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
                await self._run(batch)
        finally:
            self._task = None
