"""Parts that start and stop with an inbox."""

from collections.abc import Iterable
from typing import Protocol


class Companion(Protocol):
    """A part that starts and stops with an inbox that is mounted in another app, such as its dashboard."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


async def stop_all(companions: Iterable[Companion]) -> None:
    """Stop each of them; one that was not started stays so."""
    for companion in companions:
        await companion.stop()
