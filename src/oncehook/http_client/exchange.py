"""One connection, and one exchange over it: a request as bytes in, an answer out, read up to a limit.

An answer counts when it is whole. One that is larger than the limit is cut there, and its status still counts.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

import httptools

from oncehook.model.errors import SendFailed

MOST_HEAD = 64 * 1024
MOST_FRAMING = 6
"""A body in chunks of one byte takes six times its size. What comes beyond that is not needed: trailers, say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `whole` is False if the body was larger than what is read of one."""

    status: int
    headers: dict[str, str]  # names in lower case; of one that came twice, the last
    body: bytes
    whole: bool = True


class Connection(asyncio.Protocol):
    """A connection, for one exchange at a time."""

    def __init__(self) -> None:
        self.is_open = True
        self.heard = False  # whether anything of the last answer came
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._ending: asyncio.TimerHandle | None = None

    async def ask(self, message: bytes, origin: str, most: int) -> tuple[Answer, bool]:
        """The answer, and whether the connection may be used again."""
        self.heard = False
        if self._transport is None or not self.is_open:
            raise SendFailed(f"{origin} closed the connection without an answer")
        exchange = self._exchange = Exchange(origin, most)
        self._transport.write(message)  # never waited for: an answer may come before all of it was taken
        try:
            return await exchange.answer, exchange.reusable
        finally:
            self._exchange = None

    def rest(self, seconds: float) -> None:
        """Nothing is asked for now: close it unless that changes soon."""
        self._ending = asyncio.get_running_loop().call_later(seconds, self.close)

    def wake(self) -> None:
        if self._ending is not None:
            self._ending.cancel()

    def close(self) -> None:
        self.wake()
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None or self._exchange.answer.done():
            self.close()  # nothing was asked
        else:
            self.heard = True
            self._exchange.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._exchange is not None:
            self._exchange.end()


class Exchange:
    """Reads one answer; `answer` is done when it is whole, too large, or will never be whole."""

    def __init__(self, origin: str, most: int) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
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
            self._fail("did not answer in HTTP")
        if not self._head_read and self._fed > MOST_HEAD:
            self._fail("answered with headers that are too long")
        elif self._fed > MOST_HEAD + MOST_FRAMING * self._most:
            self._fail("answered with more than its body")

    def end(self) -> None:
        """The connection is closed. That ends an answer whose length was not told, and cuts any other short."""
        if self._head_read and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self._done(whole=True)
        elif self._fed:
            self._fail("closed the connection before its answer was whole")
        else:
            self._fail("closed the connection without an answer")

    def _done(self, *, whole: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, dict(self._headers), bytes(self._body), whole))

    def _fail(self, what: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(SendFailed(f"{self._origin} {what}"))

    # -- what the parser calls ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.answer.done():  # more than was asked for: its rest could be taken for the next answer
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_read:  # else it is a trailer
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
            self.reusable = not self.answer.done() and self._parser.should_keep_alive()
            self._done(whole=True)
        else:  # 100 and the like: the answer is still to come
            self._headers.clear()
