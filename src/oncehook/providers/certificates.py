"""Certificates that must be fetched, and the one way in which the door fetches anything.

Who may be asked is decided before this module is called (`providers/sns.py`). Here: HTTPS with a verified
host name, no redirect, no proxy, one time limit for the whole exchange, a bounded answer, one fetch at a time per
address, a bounded cache, and a failed fetch is Unavailable (503, the sender tries again), never a verdict.
"""

import asyncio
import io
import socket
import ssl
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncehook.clock import SYSTEM
from oncehook.errors import Unavailable

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[[str], bytes]

TIME_LIMIT = 5.0
MOST_BYTES = 64 * 1024
MOST_KEPT = 64
MOST_FETCHING = 4


def fetch(url: str, *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None) -> bytes:
    """GET an https address: 200 or an OSError, within the time limit. `dial` connects elsewhere, for tests."""
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None:
        raise OSError("only https is fetched")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    request = f"GET {target} HTTP/1.1\r\nHost: {parts.hostname}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    deadline = SYSTEM.monotonic() + TIME_LIMIT
    context = context or ssl.create_default_context()
    with socket.create_connection(dial or (parts.hostname, 443), timeout=_left(deadline)) as plain:
        plain.settimeout(_left(deadline))
        with context.wrap_socket(plain, server_hostname=parts.hostname) as secure:
            secure.settimeout(_left(deadline))
            secure.sendall(request.encode())
            return _content(_read_to_end(secure, deadline))


def _left(deadline: float) -> float:
    left = deadline - SYSTEM.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _read_to_end(connection: ssl.SSLSocket, deadline: float) -> bytes:
    """All that is sent until the other side closes. A timeout of the socket alone would count anew with every byte."""
    answer = b""
    while True:
        connection.settimeout(_left(deadline))
        chunk = connection.recv(16 * 1024)
        if not chunk:
            return answer
        answer += chunk
        if len(answer) > 2 * MOST_BYTES:
            raise OSError("it answered with too much")


def _content(answer: bytes) -> bytes:
    class Received:  # as much of a socket as a response needs
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(answer)

    response = HTTPResponse(Received(), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        content = response.read()
    except (HTTPException, ValueError) as error:
        raise OSError(f"it did not answer in HTTP: {type(error).__name__}") from None
    if response.status != 200:
        raise OSError(f"it answered {response.status}")
    if len(content) > MOST_BYTES:
        raise OSError("it answered with too much")
    return content


class Certificates:
    """Certificates by address. `ensure` fetches one at most once at a time; `get` never waits."""

    def __init__(self, fetch: Fetch = fetch) -> None:
        self.fetch = fetch
        self._kept: dict[str, Certificate] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def get(self, url: str) -> "Certificate | None":
        return self._kept.get(url)

    async def ensure(self, url: str) -> None:
        """Have the certificate of this address, or raise Unavailable."""
        if url in self._kept:
            return
        task = self._fetching.get(url)
        if task is None:
            if len(self._fetching) >= MOST_FETCHING:
                raise Unavailable("too many certificates are being fetched")
            task = self._fetching[url] = asyncio.create_task(self._fetch(url))
            task.add_done_callback(lambda _: self._fetching.pop(url, None))
        await asyncio.shield(task)

    async def _fetch(self, url: str) -> None:
        try:
            certificate = _load(await asyncio.to_thread(self.fetch, url))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the signing certificate could not be fetched: {error}", retry_after=20) from error
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[url] = certificate


def _load(content: bytes) -> "Certificate":
    """Raises ValueError for what is not the certificate of an RSA key: only those can be asked to verify."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(content)
        key = certificate.public_key()
    except UnsupportedAlgorithm as error:
        raise ValueError("it is a certificate of an unknown kind") from error
    if not isinstance(key, RSAPublicKey):
        raise ValueError("it is not the certificate of an RSA key")
    return certificate
