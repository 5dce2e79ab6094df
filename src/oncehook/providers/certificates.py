"""Certificates that must be fetched, and the one way in which the door fetches anything.

Who may be asked is decided before this module is called (`providers/sns.py`), and `outgoing.py` asks. Here: HTTPS
alone, one fetch at a time per address, a bounded cache, and a failed fetch is Unavailable (503, the sender tries
again), never a verdict.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from oncehook.errors import SendFailed, Unavailable
from oncehook.exchange import Answer
from oncehook.outgoing import Address, Outgoing, look_up_name

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[[str], bytes]

TIME_LIMIT = 5.0
MOST_BYTES = 64 * 1024
MOST_KEPT = 64
MOST_FETCHING = 4


def fetch(url: str, *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None) -> bytes:
    """GET an https address: 200 or an OSError, within the time limit. `dial` connects elsewhere, for tests.

    Waits: for a thread of its own. The address is trusted, wherever it is: who may be asked was decided by its name,
    and a cloud's own services may well have private addresses.
    """
    if not url.startswith("https://") or url.startswith("https:///"):
        raise OSError("only https is fetched, from a host")
    try:
        answer = asyncio.run(_get(url, context, dial))
    except SendFailed as error:
        raise OSError(str(error)) from None
    if answer.status != 200:
        raise OSError(f"it answered {answer.status}")
    if not answer.whole:
        raise OSError("it answered with too much")
    return answer.body


async def _get(url: str, context: ssl.SSLContext | None, dial: tuple[str, int] | None) -> Answer:
    async def elsewhere(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, dial)] if dial else await look_up_name(host, port)

    client = Outgoing(context=context, resolve=elsewhere, keep=0)
    return await client.get(url, {"Accept": "*/*"}, trusted=True, timeout=TIME_LIMIT, most=MOST_BYTES)


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
