"""What uvicorn lacks for the door: a short way in and out for a delivery, and a deadline for headers."""

import asyncio
import re
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from oncehook import signals
from oncehook.ack import Header, Response
from oncehook.receive import CLOSE, Lane, Receive, Send


class ShortLane(Lane):
    """Past ASGI's messages, where uvicorn has the whole body already and may write the whole answer at once.

    That is nearly every delivery. ASGI's way is two coroutines and five messages, and uvicorn writes an answer's head
    apart from its body, which uvloop sends at once: two system calls and two packets.
    """

    def whole_body(self, receive: Receive) -> bytes | None:
        cycle: Any = getattr(receive, "__self__", None)
        if type(cycle) is not RequestResponseCycle or cycle.more_body or cycle.waiting_for_100_continue:
            return None
        if cycle.disconnected or cycle.response_complete:
            return None
        return bytes(cycle.body)

    def answer(self, send: Send, response: Response) -> bool:
        cycle: Any = getattr(send, "__self__", None)
        if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.flow.write_paused:
            return False
        status, body, headers = response
        head = _head(status, headers)
        if head is None or cycle.scope["method"] == "HEAD":
            return False
        if cycle.disconnected:
            return True
        parts = [head]
        for name, value in cycle.default_headers:
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive and CLOSE not in headers:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(body), body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(parts))
        cycle.message_event.set()
        if not cycle.keep_alive or CLOSE in headers:
            cycle.transport.close()
        cycle.on_response()
        return True


_PLAIN = re.compile(rb"[!-~][ -~]*")


@lru_cache(64)
def _head(status: int, headers: tuple[Header, ...]) -> bytes | None:
    """The first lines of an answer; None for one that has no body, or that only uvicorn's own checks should pass."""
    if status == 204 or not all(_PLAIN.fullmatch(part) for header in headers for part in header):
        return None
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    head: bytes = STATUS_LINE[status] + lines
    return head


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
