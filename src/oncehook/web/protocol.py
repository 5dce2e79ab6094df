"""A deadline for headers, which uvicorn has none for: who never finishes a request does not keep a connection."""

import asyncio
from typing import Any

from oncehook import signals


async def close_unfinished(connections: Any, limit: float) -> None:
    """Close connections that for so long have begun no request, or not completed its header; until cancelled.

    uvicorn's protocol says with `cycle` which request a connection is at. Looking now and then costs a request nothing.
    """
    loop = asyncio.get_running_loop()
    waiting: dict[Any, tuple[Any, float]] = {}  # connection → its last request, and since when there is no other
    while True:
        await asyncio.sleep(limit / 4)
        now = loop.time()
        idle = {c: c.cycle for c in connections if c.cycle is None or c.cycle.response_complete}
        waiting = {c: waiting[c] if waiting.get(c, (c,))[0] is last else (last, now) for c, last in idle.items()}
        late = [connection for connection, (_, since) in waiting.items() if now - since >= limit]
        for connection in late:
            connection.transport.close()
        if late:
            signals.emit("connections_closed", count=len(late), detail="their request was not complete in time")
