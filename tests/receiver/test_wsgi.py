"""WSGI requests: paths, queries, headers and bodies as servers pass them, and the response."""

import io
import socket
import threading
from typing import Any

import pytest

from oncehook.receiver.ack import Response
from oncehook.receiver.handover import RequestBody
from oncehook.receiver.request import Scope
from oncehook.receiver.wsgi import _interrupt, make_body, make_scope, respond
from tests.support.waiting import wait_until

ENVIRON: dict[str, Any] = {"REQUEST_METHOD": "POST", "wsgi.url_scheme": "https", "wsgi.input": io.BytesIO()}


class Stalled:
    """The body of a client that sends nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self.read = connection.recv


def test_scope_has_the_parts_of_the_request_as_asgi_has_them() -> None:
    scope = make_scope(
        {
            **ENVIRON,
            "SCRIPT_NAME": "/webhooks",
            "PATH_INFO": "/stripe/caf\u00c3\u00a9",
            "RAW_URI": "/webhooks/stripe/caf%C3%A9?a=%20b",
            "QUERY_STRING": "a=%20b",
            "REMOTE_ADDR": "10.0.0.1",
            "REMOTE_PORT": "50000",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": "12",
            "HTTP_X_HUB_SIGNATURE": "sha1=\u00e9\u00ff",
            "HTTP_CONTENT_LENGTH": "7",
            "SERVER_NAME": "test",
        }
    )
    assert scope.pop("headers") == [
        (b"x-hub-signature", b"sha1=\xe9\xff"),
        (b"content-type", b"application/json"),
        (b"content-length", b"12"),
    ]
    assert scope == {
        "type": "http",
        "method": "POST",
        "scheme": "https",
        "path": "/webhooks/stripe/caf\u00e9",
        "root_path": "/webhooks",
        "raw_path": b"/webhooks/stripe/caf%C3%A9",
        "query_string": b"a=%20b",
        "client": ("10.0.0.1", 50000),
    }


@pytest.mark.parametrize("address", ["http://evil.example/stripe", "*", ""])
def test_address_that_is_no_path_is_not_used(address: str) -> None:
    assert "raw_path" not in make_scope({**ENVIRON, "PATH_INFO": "/stripe", "RAW_URI": address})


def test_socket_without_an_address_has_no_client() -> None:
    assert "client" not in make_scope({**ENVIRON, "REMOTE_ADDR": ""})
    assert make_scope({**ENVIRON, "REMOTE_ADDR": "::1", "REMOTE_PORT": ""})["client"] == ("::1", 0)


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"CONTENT_LENGTH": "3"}, b"abc"),
        ({"CONTENT_LENGTH": ""}, b""),
        ({}, b""),
        ({"CONTENT_LENGTH": "-1"}, b""),
        ({"CONTENT_LENGTH": "\u0663"}, b""),
        ({"wsgi.input_terminated": True}, b"abcdef"),
    ],
    ids=str,
)
def test_body_is_read_up_to_its_length_or_to_its_end(fields: dict[str, Any], read: bytes) -> None:
    body = make_body({**ENVIRON, **fields, "wsgi.input": io.BytesIO(b"abcdef")})
    message = body.next_message()
    assert (message["type"], message["body"]) == ("http.request", read)


def test_late_body_is_interrupted_on_a_socket_and_nowhere_else() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        read = make_body({**ENVIRON, "CONTENT_LENGTH": "3", "gunicorn.socket": ours, "wsgi.input": Stalled(ours)})
        thread = threading.Thread(target=read.next_message)
        thread.start()
        wait_until(lambda: read.is_reading, "the thread reads")
        read.stop_reading()
        thread.join(30)
        assert not thread.is_alive()
        ours.sendall(b"408")
        assert theirs.recv(3) == b"408", "a response can still be sent"
    assert _interrupt({**ENVIRON, "gunicorn.socket": object()}) is None


def test_status_without_a_known_phrase_is_sent() -> None:
    started: list[Any] = []
    respond(ENVIRON, lambda *args: started.append(args), lambda name, scope, body: (299, b"", ()))
    assert started[0][0] == "299 Other"


@pytest.mark.parametrize(("method", "content"), [("POST", b"{}"), ("HEAD", b"")])
def test_response_has_its_length_and_no_header_of_the_connection(method: str, content: bytes) -> None:
    names: list[str] = []
    started: list[Any] = []

    def answer(name: str, scope: Scope, body: RequestBody) -> Response | None:
        names.append(name)
        return 413, b"{}", ((b"allow", b"POST"), (b"connection", b"close"))

    environ = {**ENVIRON, "REQUEST_METHOD": method, "PATH_INFO": "/stripe/acme/"}
    assert b"".join(respond(environ, lambda *args: started.append(args), answer)) == content
    ((line, headers),) = started
    assert line.startswith("413 ") and headers == [("allow", "POST"), ("content-length", "2")]
    assert names == ["stripe/acme"]


def test_disconnected_client_gets_a_response_that_nobody_reads() -> None:
    started: list[Any] = []
    respond(ENVIRON, lambda *args: started.append(args), lambda name, scope, body: None)
    assert started[0][0] == "400 Bad Request"
