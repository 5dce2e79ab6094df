"""Certificates that must be fetched, and the one way in which the door fetches anything.

Who may be asked is decided before this module is called (`providers/sns.py`). Here: HTTPS with a verified
host name, no redirect, no proxy, one total time limit, a bounded answer, one fetch at a time per address, a
bounded cache, and a failed fetch is Unavailable (503, the sender tries again), never a verdict.
"""

import asyncio
import http.client
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncehook.errors import Unavailable

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[[str], bytes]

TIME_LIMIT = 5.0
MOST_BYTES = 64 * 1024
MOST_KEPT = 64


def fetch(url: str, *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None) -> bytes:
    """GET an https address: 200 or an OSError, within the time limit. `dial` connects elsewhere, for tests."""
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None:
        raise OSError("only https is fetched")
    connection = http.client.HTTPSConnection(
        parts.hostname, 443, timeout=TIME_LIMIT, context=context or ssl.create_default_context()
    )
    if dial is not None:
        connection._create_connection = lambda address, *rest: _socket(dial, *rest)  # type: ignore[attr-defined]
    # A socket's timeout counts anew with every byte; this one does not.
    watchdog = threading.Timer(TIME_LIMIT, connection.close)
    watchdog.start()
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path or "/")
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"answered {response.status}")
        content = response.read(MOST_BYTES + 1)
    except (http.client.HTTPException, ValueError, AttributeError) as error:
        raise OSError(f"did not answer: {type(error).__name__}") from error
    finally:
        watchdog.cancel()
        connection.close()
    if len(content) > MOST_BYTES:
        raise OSError("answered with too much")
    return content


def _socket(address: tuple[str, int], *rest: object) -> object:
    import socket

    return socket.create_connection(address, timeout=TIME_LIMIT)


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
            if len(self._fetching) >= 4:
                raise Unavailable("too many certificates are being fetched")
            task = self._fetching[url] = asyncio.create_task(self._fetch(url))
            task.add_done_callback(lambda _: self._fetching.pop(url, None))
        await asyncio.shield(task)

    async def _fetch(self, url: str) -> None:
        from cryptography.x509 import load_pem_x509_certificate

        try:
            certificate = load_pem_x509_certificate(await asyncio.to_thread(self.fetch, url))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the signing certificate could not be fetched: {error}", retry_after=20) from error
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[url] = certificate
