"""The receiver as an ASGI app: one request in, the road, one answer out."""

import asyncio

from oncehook.model.delivery import Delivery
from oncehook.providers.source import Source
from oncehook.receiver.request import (
    ClientLeft,
    Reads,
    Receive,
    Refused,
    Scope,
    Send,
    check_head,
    read_capped,
    respond,
)
from oncehook.receiver.steps import Receiver


class AsgiReceiver:
    """Answers ASGI requests to the address of a source."""

    def __init__(self, receiver: Receiver, reads: Reads) -> None:
        self.receiver = receiver
        self.reads = reads

    def start(self) -> None:
        """Receive in the loop that runs now. It is kept: asking for it is a system call in Python 3.11."""
        self.receiver.claimer.loop = loop = asyncio.get_running_loop()
        self.reads.start(loop)

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the address of source `name`: exactly one answer, or none if the client left."""

        async def complete(source: Source, delivery: Delivery) -> None:
            if source.proxies is not None:
                delivery.address = source.proxies.address(scope, delivery)
            delivery.body = await read_capped(receive, source.max_body, self.reads)

        try:
            check_head(scope)
            response = await self.receiver.receive(name, delivery_of(scope), complete)
        except Refused as error:
            response = self.receiver.refusals.answer(name, error)
        except ClientLeft:
            return
        await respond(send, response)


def delivery_of(scope: Scope) -> Delivery:
    """The head of a request. Its body follows."""
    return Delivery(
        b"",
        scope["headers"],
        method=scope["method"],
        path=scope["path"],
        query=scope.get("query_string", b""),
        scheme=scope.get("scheme", "http"),
    )
