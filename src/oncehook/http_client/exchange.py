"""One HTTP/1.1 connection, and one exchange over it: sends a request as bytes and reads the response up to a limit.

A response counts only when it is complete. A body above the limit is cut there, and the status still counts.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

import httptools

from oncehook.model.errors import SendFailed

MAX_HEAD_BYTES = 64 * 1024
MAX_FRAMING_PER_BYTE = 6
"""In chunks of one byte, each byte of a body takes six. A response with more around its body is not read further."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a target. `whole` is False if the body was larger than the limit."""

    status: int
    headers: dict[str, str]  # names in lower case; the last value wins
    body: bytes
    whole: bool = True


class Connection(asyncio.Protocol):
    """A connection, for one exchange at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self.got_data = False  # whether any byte of the last response arrived
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def request(self, message: bytes, origin: str, most: int) -> tuple[Response, bool]:
        """Send a request. Returns the response, and whether the connection can be reused."""
        self.got_data = False
        if self._transport is None or not self.is_open:
            raise SendFailed(f"{origin} closed the connection without a response")
        exchange = self._exchange = Exchange(origin, most)
        self._transport.write(message)  # not awaited: the response may come before the request was read completely
        try:
            return await exchange.response, exchange.reusable
        finally:
            self._exchange = None

    def close_after(self, seconds: float) -> None:
        """Close the idle connection after `seconds`, unless `keep_open` is called first."""
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def keep_open(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def close(self) -> None:
        self.keep_open()
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None or self._exchange.response.done():
            self.close()  # no request is waiting for these bytes
        else:
            self.got_data = True
            self._exchange.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._exchange is not None:
            self._exchange.end()


class Exchange:
    """Reads one response. The future `response` ends when it is complete, too large, or can never be complete."""

    def __init__(self, origin: str, most: int) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self._origin = origin
        self._most = most
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._status = 0
        self._fed = 0
        self._head_read = False
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("sent a response that is not HTTP/1.1")
        if not self._head_read and self._fed > MAX_HEAD_BYTES:
            self._fail("sent response headers that are too long")
        elif self._fed > MAX_HEAD_BYTES + MAX_FRAMING_PER_BYTE * self._most:
            self._fail("sent too many bytes around the response body")

    def end(self) -> None:
        """Handle a closed connection. It completes a response without a length, and cuts off any other."""
        if self._head_read and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self._done(whole=True)
        elif self._fed:
            self._fail("closed the connection before the response was complete")
        else:
            self._fail("closed the connection without a response")

    def _done(self, *, whole: bool) -> None:
        if not self.response.done():
            self.response.set_result(Response(self._status, dict(self._headers), bytes(self._body), whole))

    def _fail(self, problem: str) -> None:
        if not self.response.done():
            self.response.set_exception(SendFailed(f"{self._origin} {problem}"))

    # -- callbacks of the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.response.done():  # a second response: its rest could be taken for the response to the next request
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_read:  # afterwards it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._head_read = self._status >= 200

    def on_body(self, data: bytes) -> None:
        room = self._most - len(self._body)
        self._body += data[:room]
        if len(data) > room:
            self._done(whole=False)

    def on_message_complete(self) -> None:
        if self._head_read:
            self.reusable = not self.response.done() and self._parser.should_keep_alive()
            self._done(whole=True)
        else:  # 100 Continue, for example: the final response follows
            self._headers.clear()
