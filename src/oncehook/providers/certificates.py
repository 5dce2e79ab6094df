"""Certificates and keys that must be fetched, and the one way in which the door fetches anything.

A signature family decides who may be asked (`FetchingCheck.wanted`), and `http_client/client.py` asks. Here: HTTPS
alone, one fetch at a time per key, a budget of fetches for each source, and a bounded cache. A key counts for a day,
and one that is in use is renewed in the background before that. A failed fetch is Unavailable (503, it is sent again),
never a verdict. While a host does not answer, the key that it gave counts on.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.http_client.client import Address, Outgoing, look_up_name
from oncehook.http_client.exchange import Answer
from oncehook.model.errors import SendFailed, Unavailable
from oncehook.observability import signals

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[..., Awaitable[bytes]]  # an address, and what is posted there, if anything → the answer

TIME_LIMIT = 5.0
MOST_BYTES = 64 * 1024
MOST_KEPT = 64
MOST_FETCHING = 2
MOST_A_MINUTE = 30
"""Both for each source."""

KEPT_SECONDS = 24 * 3600.0
RENEWED_AFTER = 20 * 3600.0
STALE_SECONDS = 7 * 24 * 3600.0
"""How old a key may become while its host does not answer."""

PAUSE = 60.0
"""So long after a failure the same key is not asked for again."""


class NotThere(OSError):
    """The host answered, and has no such key."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A key that must be had before a delivery can be verified."""

    name: str  # what it is kept under
    address: str
    content: bytes = field(default=b"", repr=False)  # what is posted there; it may hold credentials
    load: Callable[[bytes], Any] | None = None  # the answer → the key; a certificate unless given


async def fetch(
    url: str, content: bytes = b"", *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None
) -> bytes:
    """GET an https address, or POST JSON there: 200 or an OSError, within the time limit.

    `dial` connects elsewhere, for tests. The address is trusted, wherever it is: who may be asked was decided by its
    name, and a cloud's own services may well have private addresses.
    """
    if not url.startswith("https://") or url.startswith("https:///"):
        raise OSError("only https is fetched, from a host")
    if context is None:
        context = await asyncio.to_thread(_trusted_roots)
    try:
        answer = await _ask(url, content, context, dial)
    except SendFailed as error:
        raise OSError(str(error)) from None
    if answer.status in (404, 410):
        raise NotThere(f"it answered {answer.status}")
    if answer.status != 200:
        raise OSError(f"it answered {answer.status}")
    if not answer.whole:
        raise OSError("it answered with too much")
    return answer.body


@cache
def _trusted_roots() -> ssl.SSLContext:
    """The certificate authorities of the system, which are read from disk once."""
    return ssl.create_default_context()


async def _ask(url: str, content: bytes, context: ssl.SSLContext, dial: tuple[str, int] | None) -> Answer:
    async def elsewhere(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, dial)] if dial else await look_up_name(host, port)

    client = Outgoing(context=context, resolve=elsewhere, keep=0)
    headers = {"Accept": "*/*"}
    if not content:
        return await client.get(url, headers, trusted=True, timeout=TIME_LIMIT, most=MOST_BYTES)
    headers["Content-Type"] = "application/json"
    return await client.send(url, content, headers, trusted=True, timeout=TIME_LIMIT, most=MOST_BYTES)


@dataclass(slots=True)
class Kept:
    """A key that was fetched, and how long it counts."""

    wanted: Wanted
    key: Any
    fetched: float
    until: float  # it counts until then
    renew_at: float  # from then on it is renewed in the background
    used: bool = False  # since it was fetched: a key that nobody needs is not renewed


class Certificates:
    """Certificates and keys by name. `ensure` fetches one at most once at a time; `get` never waits.

    Sources share the keys, and each has its own budget of fetches (`for_source`): what strangers make one source fetch
    is no other source's loss.
    """

    def __init__(self, fetch: Fetch = fetch, clock: Clock = SYSTEM) -> None:
        self.fetch = fetch
        self.clock = clock
        self._kept: dict[str, Kept] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, float] = {}  # keys that were not there, and until when they are not asked for again
        self._begin_budget()

    def for_source(self) -> "Certificates":
        """The same keys, with a budget of its own."""
        own = copy(self)
        own._begin_budget()
        return own

    def _begin_budget(self) -> None:
        self._begun: deque[float] = deque(maxlen=MOST_A_MINUTE)
        self._busy = 0

    def get(self, name: str) -> Any:
        """The key of this name, or None; a certificate is kept under its address."""
        kept = self._kept.get(name)
        if kept is None or kept.until <= self.clock.monotonic():
            return None
        kept.used = True
        return kept.key

    async def ensure(self, wanted: "Wanted | str") -> bool:
        """Have this key, or raise Unavailable. False if it was here already."""
        if isinstance(wanted, str):
            wanted = Wanted(wanted, wanted)
        if self.get(wanted.name) is not None:
            return False
        if self._missing.get(wanted.name, 0.0) > self.clock.monotonic():
            raise Unavailable("the signing key was not found a moment ago", retry_after=30)
        task = self._fetching.get(wanted.name)
        try:
            await asyncio.shield(task or self._start_counted(wanted))
        except Unavailable:
            if not self._prolong(wanted.name):
                raise
        return True

    def renew(self) -> None:
        """Begin to renew the keys that are in use and will be too old soon. The old ones count meanwhile."""
        now = self.clock.monotonic()
        due = [kept for kept in self._kept.values() if kept.renew_at <= now and kept.used]
        for kept in due[:MOST_FETCHING]:
            if kept.wanted.name not in self._fetching:
                kept.renew_at = now + PAUSE
                self._start(kept.wanted.name, self._renew(kept))

    async def visit(self, url: str, content: bytes = b"") -> bytes:
        """What stands at an address. Raises OSError; Unavailable when too many were asked for in the last minute."""
        now = self.clock.monotonic()
        if len(self._begun) == MOST_A_MINUTE and self._begun[0] > now - 60:
            raise Unavailable("too much was fetched in the last minute", retry_after=30)
        self._begun.append(now)
        return await self._ask(url, content)

    async def _ask(self, url: str, content: bytes) -> bytes:
        return await self.fetch(url, *([content] if content else []))

    def _start(self, name: str, fetching: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._fetching[name] = asyncio.create_task(fetching)
        task.add_done_callback(lambda _: self._fetching.pop(name, None))
        return task

    def _start_counted(self, wanted: Wanted) -> "asyncio.Task[None]":
        if self._busy >= MOST_FETCHING:
            raise Unavailable("too many certificates are being fetched")
        task = self._start(wanted.name, self._fetch(wanted))
        self._busy += 1
        task.add_done_callback(self._is_free)
        return task

    def _is_free(self, task: "asyncio.Task[None]") -> None:
        self._busy -= 1

    async def _fetch(self, wanted: Wanted) -> None:
        try:
            self._keep(wanted, (wanted.load or _load)(await self.visit(wanted.address, wanted.content)))
        except (OSError, ValueError) as error:
            if isinstance(error, (NotThere, ValueError)):
                self._kept.pop(wanted.name, None)  # the host has answered: what it gave before counts no more
            if isinstance(error, NotThere):
                _put(self._missing, wanted.name, self.clock.monotonic() + PAUSE)
            raise Unavailable(f"the signing key could not be fetched: {error}", retry_after=20) from error

    async def _renew(self, kept: Kept) -> None:
        wanted = kept.wanted
        try:
            self._keep(wanted, (wanted.load or _load)(await self._ask(wanted.address, wanted.content)))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not isinstance(error, NotThere):
                self._prolong(wanted.name)
            signals.emit("key_renewal_failed", key=wanted.name, error=str(error))

    def _keep(self, wanted: Wanted, key: Any) -> None:
        now = self.clock.monotonic()
        _put(self._kept, wanted.name, Kept(wanted, key, now, now + KEPT_SECONDS, now + RENEWED_AFTER))

    def _prolong(self, name: str) -> bool:
        """Let an old key count on while its host does not answer; False if there is none, or it is too old for that."""
        kept, now = self._kept.get(name), self.clock.monotonic()
        if kept is None or now >= kept.fetched + STALE_SECONDS:
            return False
        kept.until = max(kept.until, now + 2 * PAUSE)
        return True


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    """The newest stand last, and the oldest make room."""
    table.pop(name, None)
    while len(table) >= MOST_KEPT:
        table.pop(next(iter(table)))
    table[name] = value


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
