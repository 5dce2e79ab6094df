"""The inbox as a WSGI app: behind Werkzeug's server in a thread of this process, or behind an ASGI call of a test."""

import asyncio
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Response

from oncehook import Inbox
from oncehook.receiver import wsgi
from oncehook.receiver.handover import Handover
from tests.support.events import stripe_body, stripe_headers


class _KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *args: Any) -> None:
        pass


@contextmanager
def served_by_werkzeug(inbox: Inbox) -> Iterator[int]:
    """The port of a server with the inbox below `/webhooks`. It has a thread for each connection."""
    app = DispatcherMiddleware(Response(status=404), {"/webhooks": inbox.wsgi})
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_KeepAlive)
    server.daemon_threads = True  # type: ignore[attr-defined]  # a connection may stay open at the end of a test
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        inbox.wsgi.stop()


def deliver(inbox: Inbox, event_id: str, type_: str = "invoice.paid") -> int:
    """Deliver through `inbox.wsgi`, and return the status of the response."""
    body = stripe_body(event_id, type_)
    headers = [(name.lower().encode(), value.encode()) for name, value in stripe_headers(body).items()]
    started: list[Any] = []
    environ = environ_of({"method": "POST", "path": "/stripe", "headers": headers}, body)
    b"".join(inbox.wsgi(environ, lambda *args: started.append(args)))
    return int(started[0][0].split()[0])


def wsgi_inbox(database: str, **settings: Any) -> Inbox:
    """An inbox with a Stripe source, not started."""
    inbox = Inbox(database, **{"poll": "50ms", "worker": False, **settings})
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def call_through_wsgi(inbox: Inbox, scope: Any, receive: Any, send: Any) -> None:
    """Handle an ASGI request with the WSGI adapter, in a thread. The inbox runs in this event loop."""
    loop, settings = asyncio.get_running_loop(), inbox._runtime.settings
    handover = Handover(inbox._runtime.reception.asgi, loop, limit=settings.intake_limit, patience=30)
    body = (await receive())["body"]
    started: list[Any] = []

    def call() -> bytes:
        environ = environ_of(scope, body)
        return b"".join(wsgi.respond(environ, lambda *args: started.append(args), handover.answer))

    content = await asyncio.to_thread(call)
    status, headers = started[0]
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": int(status.split()[0]), "headers": pairs})
    await send({"type": "http.response.body", "body": content})


def environ_of(scope: Any, body: bytes) -> dict[str, Any]:
    """The WSGI environment of a request, as servers make it."""
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": scope.get("root_path", ""),
        "PATH_INFO": scope["path"].removeprefix(scope.get("root_path", "")).encode().decode("latin-1"),
        "QUERY_STRING": scope.get("query_string", b"").decode("latin-1"),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        "CONTENT_LENGTH": str(len(body)),
    }
    if scope.get("client"):
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = scope["client"][0], str(scope["client"][1])
    for name, value in scope["headers"]:
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + key
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key.startswith("HTTP_") and key in environ else text
    return environ
