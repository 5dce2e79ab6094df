"""uvicorn's protocol with a deadline for headers: who never finishes a request does not keep a connection."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncehook import signals


class DoorProtocol(HttpToolsProtocol):
    """Remembers since when a connection owes us a complete header."""

    waiting_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waiting_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.waiting_since is None and (self.cycle is None or self.cycle.response_complete):
            self.waiting_since = self.loop.time()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self.waiting_since = None
        super().on_headers_complete()


async def close_unfinished(connections: Any, limit: float) -> None:
    """Close connections whose request is not begun or whose header is not complete in time, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(limit / 4)
        oldest = loop.time() - limit
        late = [c for c in list(connections) if c.waiting_since is not None and c.waiting_since < oldest]
        for connection in late:
            connection.transport.close()
        if late:
            signals.emit("connections_closed", count=len(late), detail="their request was not complete in time")
