"""aiohttp: adds an inbox to an app. The responses are those of ASGI, and bodies are limited while they arrive.

    app = web.Application()
    setup(app, inbox)

aiohttp's `client_max_size` does not apply here: the limit is the inbox's `max_body`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from aiohttp import web
from multidict import CIMultiDict

from oncehook.model.errors import ConfigurationError

Message = MutableMapping[str, Any]
DISCONNECT: Message = {"type": "http.disconnect"}


class MountableInbox(Protocol):
    """The methods of an `Inbox` that `setup` uses."""

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]: ...

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None: ...


def setup(app: web.Application, inbox: MountableInbox, *, prefix: str = "/webhooks") -> None:
    """Add the inbox to an app: its sources below `prefix`. It starts and stops with the app."""
    if not prefix.strip("/"):
        raise ConfigurationError("prefix is empty: the inbox needs its own path, such as /webhooks")

    async def run(_: web.Application) -> AsyncIterator[None]:
        async with inbox.lifespan():
            yield

    async def answer(request: web.Request) -> web.StreamResponse:
        collected = CollectedResponse()
        await inbox(make_scope(request), BodyReader(request), collected.send)
        return collected.make()

    app.cleanup_ctx.append(run)
    app.router.add_route("*", f"/{prefix.strip('/')}/{{source:.*}}", answer)


def make_scope(request: web.Request) -> dict[str, Any]:
    """Make the ASGI scope of a request. The source is the part of the path that the route leaves open."""
    address, _, query = request.raw_path.partition("?")
    source = request.match_info["source"]
    scope = {
        "type": "http",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path.removesuffix(source).rstrip("/"),
        "raw_path": address.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
    }
    peer = request.get_extra_info("peername")
    if isinstance(peer, tuple):
        scope["client"] = peer[0], peer[1]
    return scope


class BodyReader:
    """Returns the body in parts, as ASGI's `receive` does."""

    def __init__(self, request: web.Request) -> None:
        self._content = request.content

    async def __call__(self) -> Message:
        try:
            part = await self._content.readany()
        except Exception:  # the client disconnected, or sent an invalid chunk
            return DISCONNECT
        return {"type": "http.request", "body": part, "more_body": bool(part) or not self._content.at_eof()}


class CollectedResponse:
    """The response that an ASGI app sends in parts. Without one, the client has disconnected."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._headers: list[tuple[str, str]] = []
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        else:
            self._body += message.get("body", b"")

    def make(self) -> web.Response:
        if self._status is None:
            response = web.Response(status=400)
            response.force_close()
            return response
        headers = CIMultiDict(self._headers)
        closes = headers.pop("connection", None) is not None
        headers.pop("content-length", None)  # aiohttp sets its own
        response = web.Response(status=self._status, body=self._body, headers=headers)
        if closes:
            response.force_close()
        return response
