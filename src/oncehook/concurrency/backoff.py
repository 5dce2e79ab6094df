"""Waits that grow while something does not respond, with jitter, so that many processes do not return together."""

import asyncio
import random


class Backoff:
    """Waits `first` seconds, then twice as long each time, up to `most`. Each wait is shortened by up to a half."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def reset(self) -> None:
        """Wait `first` seconds the next time."""
        self._next = self._first

    def next_seconds(self) -> float:
        """Return how long to wait now, and double the next wait."""
        seconds, self._next = self._next, min(2 * self._next, self._most)
        return seconds * random.uniform(0.5, 1)  # noqa: S311  # spreads load, guards no secret

    async def wait(self) -> None:
        await asyncio.sleep(self.next_seconds())
