"""The receiver as a WSGI app: translates a WSGI request, and sends the response of the receiver.

The response is the one that ASGI gives. WSGI itself has three limits: it joins repeated headers with a comma, it does
not distinguish `-` and `_` in the names of headers, and it has no way to close a connection.
"""

import socket
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Protocol

from oncehook.receiver.ack import Header, Response, rejected_response
from oncehook.receiver.handover import RequestBody
from oncehook.receiver.request import CLOSE, Scope

Environ = Mapping[str, Any]
StartResponse = Callable[..., object]
WsgiApp = Callable[[Any, Any], Iterable[bytes]]

SOCKETS = ("gunicorn.socket", "werkzeug.socket")
"""Where servers keep the connection of a request. A body that is late is interrupted there."""


class Answer(Protocol):
    """Answers a request to the address `name`. None if the client disconnected."""

    def __call__(self, name: str, scope: Scope, body: RequestBody) -> Response | None: ...


def respond(environ: Environ, start_response: StartResponse, answer: Answer) -> Iterable[bytes]:
    """Answer one WSGI request to the address of a source, which is the path below the mount."""
    name = decode_path(environ.get("PATH_INFO", "")).strip("/")
    response = answer(name, make_scope(environ), make_body(environ))
    status, body, headers = response or rejected_response("malformed", CLOSE)  # a server needs some response
    start_response(f"{status} {reason(status)}", response_headers(status, body, headers))
    return () if environ["REQUEST_METHOD"] == "HEAD" else (body,)


class Mounted:
    """A WSGI app with the inbox below `prefix`, and another app everywhere else."""

    def __init__(self, app: WsgiApp, prefix: str, inbox: WsgiApp, start_soon: Callable[[], None]) -> None:
        self._app = app
        self._prefix = "/" + prefix.strip("/")
        self._inbox = inbox
        self._start_soon = start_soon

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path: str = environ.get("PATH_INFO", "")
        if path != self._prefix and not path.startswith(self._prefix + "/"):
            self._start_soon()
            return self._app(environ, start_response)
        root = environ.get("SCRIPT_NAME", "") + self._prefix
        return self._inbox({**environ, "SCRIPT_NAME": root, "PATH_INFO": path[len(self._prefix) :]}, start_response)


@cache
def reason(status: int) -> str:
    """Return the words that belong to a status code."""
    from http import HTTPStatus  # only a WSGI app needs it

    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Other"


def make_scope(environ: Environ) -> Scope:
    """Make the ASGI scope of a WSGI request."""
    root, path = decode_path(environ.get("SCRIPT_NAME", "")), decode_path(environ.get("PATH_INFO", ""))
    scope: Scope = {
        "type": "http",
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": root + path,
        "root_path": root,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": request_headers(environ),
    }
    address = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""  # as it was sent, if the server has it
    if address.startswith("/"):
        scope["raw_path"] = address.partition("?")[0].encode("latin-1", "replace")
    if environ.get("REMOTE_ADDR"):
        port = str(environ.get("REMOTE_PORT", ""))
        scope["client"] = environ["REMOTE_ADDR"], int(port) if port.isdigit() else 0
    return scope


def decode_path(path: str) -> str:
    """Return a path of WSGI, whose characters stand for bytes, as text."""
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


def request_headers(environ: Environ) -> list[Header]:
    """Return the headers of a request. Their names are lower-case bytes, as in ASGI."""
    headers = [
        (name[5:].replace("_", "-").lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH")
    ]
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers.append((name.replace("_", "-").lower().encode(), environ[name].encode("latin-1", "replace")))
    return headers


def make_body(environ: Environ) -> RequestBody:
    """Return the body of a request. Without a length, only a server that ends the body itself can be read."""
    declared = environ.get("CONTENT_LENGTH") or ""
    if declared:
        length: int | None = int(declared) if declared.isascii() and declared.isdigit() else 0
    else:
        length = None if environ.get("wsgi.input_terminated") else 0
    return RequestBody(environ["wsgi.input"].read, length, _interrupt(environ))


def _interrupt(environ: Environ) -> Callable[[], None] | None:
    """Return a function that ends a blocking read on the connection of a request, if the server shares it."""
    connection = next((environ[name] for name in SOCKETS if name in environ), None)
    if not isinstance(connection, socket.socket):
        return None
    return partial(socket.socket.shutdown, connection, socket.SHUT_RD)  # that of a TLS socket would end encryption too


def response_headers(status: int, body: bytes, headers: Iterable[Header]) -> list[tuple[str, str]]:
    """Return the headers of a response. An app of WSGI must not set those of the connection."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name != CLOSE[0]]
    return pairs if status == 204 else [*pairs, ("content-length", str(len(body)))]
