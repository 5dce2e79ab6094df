"""Complete deliveries without ASGI: no task and no ASGI messages. `LimitedProtocol` is the plain variant of it.

`fast_paths = false` turns this off.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from oncehook.model.delivery import LARGE, Delivery
from oncehook.observability import signals
from oncehook.receiver.ack import Response
from oncehook.receiver.limited_protocol import Exchange, LimitedProtocol
from oncehook.receiver.request import PREFIX

RECEIVER = PREFIX.encode()


class FastProtocol(LimitedProtocol):
    """One connection of `oncehook serve`.

    A delivery that arrived in one piece, for a source that needs nothing but to verify, read and claim it, goes to the
    receiver directly, and its answer is written in one piece after the commit. Every other request goes through ASGI.
    """

    is_direct = False  # the request may go to the receiver directly

    def begin_request(self) -> None:
        if self._may_be_direct():
            self.is_direct = True
        else:
            super().begin_request()

    def end_of_data(self) -> None:
        if self.is_direct:  # the rest is still to come, and has a deadline, a cap and a client that may leave
            self._use_asgi()
        super().end_of_data()

    def on_message_complete(self) -> None:
        if self.is_direct:
            if self._receive(b"".join(self.parts)):
                self.is_direct, self.parts = False, []
                return
            self._use_asgi()
        super().on_message_complete()

    def _may_be_direct(self) -> bool:
        return (
            self.url.startswith(RECEIVER)
            and self.receiver is not None
            and self.is_answered()
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and not self.parser.should_upgrade()
            and (self.limit_concurrency is None or len(self.connections) < self.limit_concurrency)
        )

    def _use_asgi(self) -> None:
        self.is_direct = False
        if not self.transport.is_closing():
            super().begin_request()

    def _receive(self, body: bytes) -> bool:
        """Receive a complete delivery. False if anything but its commit has to be awaited for its source."""
        assert self.receiver is not None
        address, _, query = self.url.partition(b"?")
        path = address.decode("latin-1")
        name = path[len(PREFIX) :].rstrip("/")
        source = self.receiver.sources.get(name)
        if source is None or not source.is_plain or len(body) > LARGE:
            return False
        delivery = Delivery(body, self.headers, path=path, query=query, scheme=self.scheme or "http")
        if b"host" not in delivery.headers or delivery.repeated:
            return False  # the service checks such heads
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self.cycle = exchange = Exchange(keep_alive, self.disconnection)  # type: ignore[assignment]
        self._step(self.receiver.receive(name, delivery), exchange)
        return True

    def _step(self, receiving: Coroutine[Any, Any, Response], exchange: Exchange, _: object = None) -> None:
        """Run the receiver's steps up to the commit, or to the answer. Raises nothing: others share the commit."""
        try:
            try:
                waiter = receiving.send(None)
            except StopIteration as finished:
                self.answer(exchange, finished.value)
            else:
                waiter.add_done_callback(partial(self._step, receiving, exchange))
        except Exception as error:  # a bug: the connection must not wait for an answer that never comes
            signals.log_background_failure("receiver", error)
            self.transport.close()
