"""The fast path of `oncehook serve`: complete deliveries skip ASGI, with no task and no ASGI messages.

`LimitedProtocol` is the plain path. `fast_paths = false` turns this one off.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from oncehook.model.delivery import LARGE, Delivery
from oncehook.observability import signals
from oncehook.receiver.ack import Response
from oncehook.receiver.limited_protocol import DirectCycle, LimitedProtocol
from oncehook.receiver.request import PREFIX

RECEIVER = PREFIX.encode()


class FastProtocol(LimitedProtocol):
    """One connection of `oncehook serve`.

    A delivery goes directly to the receiver if it arrived in one piece and its source only verifies, reads and claims.
    Its response is written in one piece after the commit. Every other request goes through ASGI.
    """

    is_direct = False  # the request may go to the receiver directly

    def begin_request(self) -> None:
        if self._may_be_direct():
            self.is_direct = True
        else:
            super().begin_request()

    def end_of_data(self) -> None:
        if self.is_direct:  # the body is incomplete: ASGI has the deadline, the size limit and disconnects
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
            and b"#" not in self.url  # uvicorn removes a fragment
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
        """Receive a complete delivery. Returns False if its source has to await more than the commit."""
        assert self.receiver is not None
        address, _, query = self.url.partition(b"?")
        path = address.decode("latin-1")
        name = path[len(PREFIX) :].rstrip("/")
        source = self.receiver.sources.get(name) or self.receiver.cached_tenant(name)
        if source is None or not source.is_plain or len(body) > LARGE:
            return False
        delivery = Delivery(body, self.headers, path=path, query=query, scheme=self.scheme or "http")
        if b"host" not in delivery.headers or delivery.repeated:
            return False  # the service checks such heads
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self.cycle = cycle = DirectCycle(keep_alive, self.disconnection)  # type: ignore[assignment]
        self._step(self.receiver.receive(name, delivery), cycle)
        return True

    def _step(self, receiving: Coroutine[Any, Any, Response], cycle: DirectCycle, _: object = None) -> None:
        """Run the receiver until it waits for the commit or returns a response.

        Raises nothing: other deliveries share the commit.
        """
        try:
            try:
                waiter = receiving.send(None)
            except StopIteration as finished:
                self.answer(cycle, finished.value)
            else:
                waiter.add_done_callback(partial(self._step, receiving, cycle))
        except Exception as error:  # a bug: the client must not wait for a response that never comes
            signals.log_background_failure("receiver", error)
            self.transport.close()
