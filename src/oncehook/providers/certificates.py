"""Certificates and keys that must be fetched, and the one way in which the door fetches anything.

Who may be asked is decided before this module is called (`providers/sns.py`, `paypal.py`, `plaid.py`, `graph.py`), and
`outgoing.py` asks. Here: HTTPS alone, one fetch at a time per key, so many a minute, a bounded cache that forgets after
a day, and a failed fetch is Unavailable (503, the sender tries again), never a verdict.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncehook.clock import SYSTEM, Clock
from oncehook.errors import SendFailed, Unavailable
from oncehook.exchange import Answer
from oncehook.outgoing import Address, Outgoing, look_up_name

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[..., bytes]  # an address, and what is posted there, if anything → the answer

TIME_LIMIT = 5.0
MOST_BYTES = 64 * 1024
MOST_KEPT = 64
MOST_FETCHING = 4
MOST_A_MINUTE = 120
KEPT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A key that must be had before a delivery can be verified."""

    name: str  # what it is kept under
    address: str
    content: bytes = field(default=b"", repr=False)  # what is posted there; it may hold credentials
    load: Callable[[bytes], Any] | None = None  # the answer → the key; a certificate unless given


def fetch(
    url: str, content: bytes = b"", *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None
) -> bytes:
    """GET an https address, or POST JSON there: 200 or an OSError, within the time limit.

    `dial` connects elsewhere, for tests.

    Waits: for a thread of its own. The address is trusted, wherever it is: who may be asked was decided by its name,
    and a cloud's own services may well have private addresses.
    """
    if not url.startswith("https://") or url.startswith("https:///"):
        raise OSError("only https is fetched, from a host")
    try:
        answer = asyncio.run(_ask(url, content, context, dial))
    except SendFailed as error:
        raise OSError(str(error)) from None
    if answer.status != 200:
        raise OSError(f"it answered {answer.status}")
    if not answer.whole:
        raise OSError("it answered with too much")
    return answer.body


async def _ask(url: str, content: bytes, context: ssl.SSLContext | None, dial: tuple[str, int] | None) -> Answer:
    async def elsewhere(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, dial)] if dial else await look_up_name(host, port)

    client = Outgoing(context=context, resolve=elsewhere, keep=0)
    headers = {"Accept": "*/*"}
    if not content:
        return await client.get(url, headers, trusted=True, timeout=TIME_LIMIT, most=MOST_BYTES)
    headers["Content-Type"] = "application/json"
    return await client.send(url, content, headers, trusted=True, timeout=TIME_LIMIT, most=MOST_BYTES)


class Certificates:
    """Certificates and keys by name. `ensure` fetches one at most once at a time; `get` never waits."""

    def __init__(self, fetch: Fetch = fetch, clock: Clock = SYSTEM) -> None:
        self.fetch = fetch
        self.clock = clock
        self._kept: dict[str, tuple[Any, float]] = {}  # the key, and until when it counts
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._begun: deque[float] = deque(maxlen=MOST_A_MINUTE)

    def get(self, name: str) -> Any:
        """The key of this name, or None; a certificate is kept under its address."""
        key, until = self._kept.get(name, (None, 0.0))
        return key if until > self.clock.monotonic() else None

    async def ensure(self, wanted: "Wanted | str") -> bool:
        """Have this key, or raise Unavailable. False if it was here already."""
        if isinstance(wanted, str):
            wanted = Wanted(wanted, wanted)
        if self.get(wanted.name) is not None:
            return False
        task = self._fetching.get(wanted.name)
        if task is None:
            if len(self._fetching) >= MOST_FETCHING:
                raise Unavailable("too many certificates are being fetched")
            task = self._fetching[wanted.name] = asyncio.create_task(self._fetch(wanted))
            task.add_done_callback(lambda _: self._fetching.pop(wanted.name, None))
        await asyncio.shield(task)
        return True

    async def visit(self, url: str, content: bytes = b"") -> bytes:
        """What stands at an address. Raises OSError; Unavailable when too many were asked for in the last minute."""
        now = self.clock.monotonic()
        if len(self._begun) == MOST_A_MINUTE and self._begun[0] > now - 60:
            raise Unavailable("too much was fetched in the last minute", retry_after=30)
        self._begun.append(now)
        return await asyncio.to_thread(self.fetch, url, *([content] if content else []))

    async def _fetch(self, wanted: Wanted) -> None:
        try:
            key = (wanted.load or _load)(await self.visit(wanted.address, wanted.content))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the signing key could not be fetched: {error}", retry_after=20) from error
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept.pop(wanted.name, None)
        self._kept[wanted.name] = key, self.clock.monotonic() + KEPT_SECONDS


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
