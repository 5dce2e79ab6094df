"""Hands requests from the threads of a server to the receiver in its event loop, and waits for the responses.

A thread reads a small body before it hands the request over. It reads any other body in parts, when the receiver
requests them: the receiver rejects most requests by their head, and the limits on bodies apply while a body arrives.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.errors import IntakeFull, StoreUnavailable, Unavailable
from oncehook.observability import signals
from oncehook.receiver.ack import Response, unavailable_response
from oncehook.receiver.asgi import AsgiReceiver
from oncehook.receiver.request import CLOSE, Message, RequestRejected, Scope

READ_BYTES = 64 * 1024
"""How much of a body is read at once. A body up to this size is read before the request is handed over."""

CHUNKED_BYTES = 8 * 1024
"""The same for a body without a length. A read waits for that much, and the body may already be too large."""

CHECKS_PER_LIMIT = 8
"""How often within `receive_timeout` late bodies are looked for, as `BodyReadLimits` does."""

ALIVE_SECONDS = 5.0
"""How often a waiting thread checks that the event loop still runs."""

DISCONNECT: Message = {"type": "http.disconnect"}

Item = tuple[bool, Response | None]
"""What a waiting thread gets: whether it should read the next part of the body, or else the response."""

READ: Item = (True, None)


class RequestBody:
    """The body of a request, which the thread of a server reads.

    `length` is the declared length, or None if `read` returns an empty part at the end of the body. `interrupt` ends a
    read that blocks; without it, only the server's own timeout does.
    """

    def __init__(
        self, read: Callable[[int], bytes], length: int | None, interrupt: Callable[[], None] | None = None
    ) -> None:
        self._read = read
        self._remaining = length
        self._interrupt = interrupt
        self.is_reading = False
        self.is_late = False
        self.started_at: float | None = None

    @property
    def is_small(self) -> bool:
        return self._remaining is not None and self._remaining <= READ_BYTES

    def next_message(self) -> Message:
        """Read the next part, as an ASGI message. If the body ends early or cannot be read, the client disconnected."""
        size = CHUNKED_BYTES if self._remaining is None else min(self._remaining, READ_BYTES)
        if size == 0:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.is_reading = True
        try:
            part = self._read(size)
        except Exception:  # each server has its own errors for a client that disconnects or sends an invalid chunk
            return DISCONNECT
        finally:
            self.is_reading = False
        if self._remaining is None:
            return {"type": "http.request", "body": part, "more_body": bool(part)}
        self._remaining -= len(part)
        if len(part) < size:
            return DISCONNECT
        return {"type": "http.request", "body": part, "more_body": self._remaining > 0}

    def stop_reading(self) -> None:
        """End a read that blocks, if the server allows it."""
        if self.is_reading and self._interrupt is not None:
            with suppress(OSError):  # the connection is closed already
                self._interrupt()


class Exchange:
    """One request on its way: the receiver's task uses it in the event loop, and a thread waits for its items."""

    __slots__ = ("_part", "_put", "body", "first", "has_begun", "is_abandoned")

    def __init__(self, body: RequestBody, put: Callable[[Item], None]) -> None:
        self.body = body
        self.first: Message | None = None  # the whole body, if it was read before
        self.has_begun = self.is_abandoned = False
        self._put = put
        self._part: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        """Return the next part of the body."""
        message, self.first = self.first, None
        if message is None:
            self._part = asyncio.get_running_loop().create_future()
            self._put(READ)
            message = await self._part
        if self.body.is_late:
            raise RequestRejected.with_code("timeout", CLOSE)
        return message

    def give(self, message: Message) -> None:
        """Pass on a part of the body. The receiver may have rejected the request in the meantime."""
        if self._part is not None and not self._part.done():
            self._part.set_result(message)

    def finish(self, task: "asyncio.Task[Response | None]") -> None:
        """Pass on the response. A request whose task was cancelled, because the inbox stops, is delivered again."""
        if task.cancelled():
            response: Response | None = unavailable_response(5)
        elif (error := task.exception()) is not None:
            if isinstance(error, Exception):
                signals.log_background_failure("receiver", error)
            response = unavailable_response(5)
        else:
            response = task.result()
        self._put((False, response))
        self.body.stop_reading()


class Handover:
    """The way from threads to the receiver in one event loop. At most `limit` requests wait at the same time."""

    def __init__(self, receiver: AsgiReceiver, loop: asyncio.AbstractEventLoop, *, limit: int, patience: float) -> None:
        self._receiver = receiver
        self._loop = loop
        self._limit = limit
        self._patience = patience  # seconds until the event loop must have begun a request
        self._waiting: set[Exchange] = set()  # threads add and remove: each operation is atomic
        self._tasks: set[asyncio.Task[Response | None]] = set()
        self._is_closed = False
        self._context = copy_context()  # a handler must not see the context of a request, which ends before

    def start(self) -> None:
        """Look for late bodies from now on. Call it in the event loop."""
        self._check_late_bodies()

    async def close(self, seconds: float) -> None:
        """Answer 503 from now on, and wait for the requests that were handed over."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def answer(self, name: str, scope: Scope, body: RequestBody) -> Response | None:
        """Return the response to a request, or None if its client disconnected. Blocks the calling thread."""
        channel: SimpleQueue[Item] = SimpleQueue()
        exchange = Exchange(body, channel.put)
        try:
            self._submit(name, scope, exchange)
            while True:
                reads, response = self._next_item(channel, exchange)
                if not reads:
                    return response
                self._call(exchange.give, body.next_message())
        except Unavailable as error:
            return self._reject(name, error)
        except BaseException:  # the caller gives up: the receiver stops waiting for the body
            self._abandon(exchange)
            raise
        finally:
            self._waiting.discard(exchange)

    async def answer_async(self, name: str, scope: Scope, body: RequestBody) -> Response | None:
        """Return the response to a request, for a caller in another event loop. Reading the body must not block it."""
        loop, channel = asyncio.get_running_loop(), asyncio.Queue[Item]()

        def put(item: Item) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(channel.put_nowait, item)

        exchange = Exchange(body, put)
        try:
            self._submit(name, scope, exchange)
            while True:
                reads, response = await self._next_item_async(channel, exchange)
                if not reads:
                    return response
                self._call(exchange.give, body.next_message())
        except Unavailable as error:
            return self._reject(name, error)
        except BaseException:  # the caller gives up: the receiver stops waiting for the body
            self._abandon(exchange)
            raise
        finally:
            self._waiting.discard(exchange)

    # -- in the thread of the caller ------------------------------------------------------------------------------

    def _submit(self, name: str, scope: Scope, exchange: Exchange) -> None:
        if self._is_closed:
            raise StoreUnavailable("the inbox is stopping")
        if len(self._waiting) >= self._limit:
            raise IntakeFull("too many requests wait for the event loop", retry_after=2)
        exchange.body.started_at = SYSTEM.monotonic()
        self._waiting.add(exchange)
        if exchange.body.is_small:
            exchange.first = exchange.body.next_message()
        self._call(self._begin, name, scope, exchange)

    def _next_item(self, channel: "SimpleQueue[Item]", exchange: Exchange) -> Item:
        deadline = SYSTEM.monotonic() + self._patience
        while True:
            try:
                return channel.get(timeout=min(self._patience, ALIVE_SECONDS))
            except Empty:
                self._check(exchange, deadline)

    async def _next_item_async(self, channel: "asyncio.Queue[Item]", exchange: Exchange) -> Item:
        deadline = SYSTEM.monotonic() + self._patience
        while True:
            try:
                return await asyncio.wait_for(channel.get(), min(self._patience, ALIVE_SECONDS))
            except TimeoutError:
                self._check(exchange, deadline)

    def _check(self, exchange: Exchange, deadline: float) -> None:
        """Raise Unavailable if the event loop has ended, or has not begun the request in time."""
        if self._loop.is_closed():
            raise StoreUnavailable("the inbox has stopped")
        if not exchange.has_begun and SYSTEM.monotonic() > deadline:
            exchange.is_abandoned = True
            raise StoreUnavailable("the event loop does not respond: an `async def` function blocks it")

    def _call(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args, context=self._context)
        except RuntimeError:
            raise StoreUnavailable("the inbox has stopped") from None

    def _reject(self, name: str, error: Unavailable) -> Response:
        known = name if name in self._receiver.receiver.sources else "unknown"
        with suppress(Unavailable):
            self._call(self._receiver.receiver.errors.respond, known, error)  # it counts, in the event loop
        return unavailable_response(error.retry_after)

    def _abandon(self, exchange: Exchange) -> None:
        exchange.is_abandoned = True
        with suppress(Unavailable):
            self._call(exchange.give, DISCONNECT)

    # -- in the event loop ----------------------------------------------------------------------------------------

    def _begin(self, name: str, scope: Scope, exchange: Exchange) -> None:
        if exchange.is_abandoned:
            return
        exchange.has_begun = True
        task = self._loop.create_task(self._receiver.answer(name, scope, exchange.receive))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(exchange.finish)

    def _check_late_bodies(self) -> None:
        limit = self._receiver.limits.time_limit
        earliest = SYSTEM.monotonic() - limit
        for exchange in list(self._waiting):
            body = exchange.body
            if body.started_at is not None and body.started_at < earliest and body.is_reading:
                body.is_late = True
                body.stop_reading()
        self._loop.call_later(limit / CHECKS_PER_LIMIT, self._check_late_bodies)
