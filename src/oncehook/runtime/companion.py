"""Parts that start and stop with an inbox."""

from typing import Protocol


class Companion(Protocol):
    """A part that starts and stops with an inbox that is mounted in another app, such as its dashboard."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...
