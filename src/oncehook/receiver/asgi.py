"""The receiver as an ASGI app: reads one request, runs the receiver's steps, sends one response."""

import asyncio

from oncehook.model.delivery import Delivery
from oncehook.providers.source import Source
from oncehook.receiver.ack import Response
from oncehook.receiver.request import (
    BodyReadLimits,
    ClientDisconnected,
    Receive,
    RequestRejected,
    Scope,
    Send,
    check_head,
    read_body,
    respond,
)
from oncehook.receiver.steps import Receiver


class AsgiReceiver:
    """Answers ASGI requests to the address of a source."""

    def __init__(self, receiver: Receiver, limits: BodyReadLimits) -> None:
        self.receiver = receiver
        self.limits = limits

    def start(self) -> None:
        """Receive in the running event loop. The loop is stored: looking it up is a system call in Python 3.11."""
        self.receiver.claimer.loop = loop = asyncio.get_running_loop()
        self.limits.start(loop)

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the address of source `name`: once, or not at all if the client disconnects."""
        response = await self.answer(name, scope, receive)
        if response is not None:
            await respond(send, response)

    async def answer(self, name: str, scope: Scope, receive: Receive) -> Response | None:
        """Return the response to one request to the address of source `name`, or None if the client disconnects."""

        async def complete(source: Source, delivery: Delivery) -> None:
            if source.proxies is not None:
                delivery.address = source.proxies.address(scope, delivery)
            delivery.body = await read_body(receive, source.max_body, self.limits)

        try:
            check_head(scope)
            return await self.receiver.receive(name, make_delivery(scope), complete)
        except RequestRejected as error:
            return self.receiver.errors.respond(name, error)
        except ClientDisconnected:
            return None


def make_delivery(scope: Scope) -> Delivery:
    """A delivery with the head of a request. Its body is read later."""
    return Delivery(
        b"",
        scope["headers"],
        method=scope["method"],
        path=scope["path"],
        query=scope.get("query_string", b""),
        scheme=scope.get("scheme", "http"),
    )


def source_name(scope: Scope) -> str:
    """Return the source named in the path. A trailing slash is accepted, never redirected."""
    return path_below_mount(scope).strip("/")


def path_below_mount(scope: Scope) -> str:
    """Return the path relative to the mount point of this app.

    An app behind a proxy may have the proxy's prefix in `root_path` although the proxy removed it from the path.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    for below in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if path.startswith(below + "/"):
            return path[len(below) :]
    return "" if root and path == root else path
