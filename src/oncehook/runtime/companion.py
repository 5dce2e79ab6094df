"""Parts that start and stop with an inbox."""

from collections.abc import Iterable
from typing import Protocol


class Companion(Protocol):
    """A part that starts and stops with a mounted inbox, such as its dashboard."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


async def stop_all(companions: Iterable[Companion]) -> None:
    """Stop all companions. Stopping one that was not started does nothing."""
    for companion in companions:
        await companion.stop()
