"""Fetches and caches signing certificates and keys. The receiver makes no other outgoing requests.

A signature family decides which key a delivery needs and where it is fetched from (`FetchingCheck.key_to_fetch`). This
module fetches over HTTPS only, one fetch at a time per key, with a budget of fetches per source and a bounded cache.

A key is valid for a day, and a key in use is renewed in the background before that. A failed fetch raises Unavailable
(503, so the sender retries) and never decides about a signature. While a host is down, its last key stays valid.
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
from oncehook.http_client.client import Address, HttpClient, resolve_name
from oncehook.http_client.exchange import Response
from oncehook.model.errors import SendFailed, Unavailable
from oncehook.observability import signals

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Fetch = Callable[..., Awaitable[bytes]]  # (address[, body to POST]) → the body of the response

TIME_LIMIT = 5.0
MAX_BYTES = 64 * 1024
MAX_CACHED = 64
MAX_CONCURRENT_FETCHES = 2
MAX_FETCHES_PER_MINUTE = 30
"""MAX_CONCURRENT_FETCHES (concurrent fetches) and MAX_FETCHES_PER_MINUTE limit each source."""

CACHE_SECONDS = 24 * 3600.0
RENEW_AFTER = 20 * 3600.0
STALE_SECONDS = 7 * 24 * 3600.0
"""The maximum age of a key whose host does not answer."""

PAUSE = 60.0
"""Seconds after a failure during which the same key is not requested again."""


class KeyNotFound(OSError):
    """The host answered that it has no such key."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key that must be fetched before a delivery can be verified."""

    name: str  # its name in the cache
    address: str
    content: bytes = field(default=b"", repr=False)  # the body to POST, which may hold credentials; empty for GET
    load: Callable[[bytes], Any] | None = None  # parses the response; the default reads a certificate


async def fetch(
    url: str, content: bytes = b"", *, context: ssl.SSLContext | None = None, dial: tuple[str, int] | None = None
) -> bytes:
    """Fetch an https address with GET, or with POST if there is `content`. Raises OSError unless the status is 200.

    `dial` connects to another address, for tests. Private addresses are allowed: the signature family has already
    checked the host's name, and the services of a cloud may have private addresses.
    """
    if not url.startswith("https://") or url.startswith("https:///"):
        raise OSError("the address is not https with a host")
    if context is None:
        context = await asyncio.to_thread(_trusted_roots)
    try:
        response = await _send(url, content, context, dial)
    except SendFailed as error:
        raise OSError(str(error)) from None
    if response.status in (404, 410):
        raise KeyNotFound(f"the host answered {response.status}")
    if response.status != 200:
        raise OSError(f"the host answered {response.status}")
    if not response.whole:
        raise OSError(f"the response is larger than {MAX_BYTES} bytes")
    return response.body


@cache
def _trusted_roots() -> ssl.SSLContext:
    """The system's certificate authorities, read from disk once."""
    return ssl.create_default_context()


async def _send(url: str, content: bytes, context: ssl.SSLContext, dial: tuple[str, int] | None) -> Response:
    async def resolve(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET, dial)] if dial else await resolve_name(host, port)

    client = HttpClient(context=context, resolve=resolve, keep=0)
    headers = {"Accept": "*/*"}
    if not content:
        return await client.get(url, headers, trusted=True, timeout=TIME_LIMIT, most=MAX_BYTES)
    headers["Content-Type"] = "application/json"
    return await client.send(url, content, headers, trusted=True, timeout=TIME_LIMIT, most=MAX_BYTES)


@dataclass(slots=True)
class CachedKey:
    """A fetched key and the times at which it is renewed and expires (monotonic seconds)."""

    request: KeyRequest
    key: Any
    fetched: float
    expires: float
    renew_at: float  # from then on it is renewed in the background
    used: bool = False  # since it was fetched; an unused key is not renewed


class Certificates:
    """A cache of certificates and keys by name. `ensure` fetches a missing key; `get` never waits.

    All sources share the cached keys. Each source has its own budget of fetches (`for_source`), so unauthenticated
    requests to one source cannot use up the fetches of another.
    """

    def __init__(self, fetch: Fetch = fetch, clock: Clock = SYSTEM) -> None:
        self.fetch = fetch
        self.clock = clock
        self._cached: dict[str, CachedKey] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, float] = {}  # names of keys that do not exist → when to ask the host again
        self._reset_budget()

    def for_source(self) -> "Certificates":
        """The same cache with a separate budget of fetches."""
        separate = copy(self)
        separate._reset_budget()
        return separate

    def _reset_budget(self) -> None:
        self._fetch_times: deque[float] = deque(maxlen=MAX_FETCHES_PER_MINUTE)
        self._busy = 0

    def get(self, name: str) -> Any:
        """The key of this name, or None. The name of a certificate is its address."""
        cached = self._cached.get(name)
        if cached is None or cached.expires <= self.clock.monotonic():
            return None
        cached.used = True
        return cached.key

    async def ensure(self, request: "KeyRequest | str") -> bool:
        """Fetch a key unless it is cached, and return whether it was fetched. Raises Unavailable."""
        if isinstance(request, str):
            request = KeyRequest(request, request)
        if self.get(request.name) is not None:
            return False
        if self._missing.get(request.name, 0.0) > self.clock.monotonic():
            raise Unavailable("the host answered a moment ago that the signing key does not exist", retry_after=30)
        task = self._fetching.get(request.name)
        try:
            await asyncio.shield(task or self._start_counted(request))
        except Unavailable:
            if not self._extend(request.name):
                raise
        return True

    def renew(self) -> None:
        """Start to renew keys that are in use and expire soon. The old keys stay valid until then."""
        now = self.clock.monotonic()
        due = [cached for cached in self._cached.values() if cached.renew_at <= now and cached.used]
        for cached in due[:MAX_CONCURRENT_FETCHES]:
            if cached.request.name not in self._fetching:
                cached.renew_at = now + PAUSE
                self._start(cached.request.name, self._renew(cached))

    async def fetch_counted(self, url: str, content: bytes = b"") -> bytes:
        """Fetch an address within the source's budget. Raises OSError; Unavailable if the budget is used up."""
        now = self.clock.monotonic()
        if len(self._fetch_times) == MAX_FETCHES_PER_MINUTE and self._fetch_times[0] > now - 60:
            raise Unavailable("the source fetched too many addresses in the last minute", retry_after=30)
        self._fetch_times.append(now)
        return await self._fetch_uncounted(url, content)

    async def _fetch_uncounted(self, url: str, content: bytes) -> bytes:
        return await self.fetch(url, *([content] if content else []))

    def _start(self, name: str, fetching: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._fetching[name] = asyncio.create_task(fetching)
        task.add_done_callback(lambda _: self._fetching.pop(name, None))
        return task

    def _start_counted(self, request: KeyRequest) -> "asyncio.Task[None]":
        if self._busy >= MAX_CONCURRENT_FETCHES:
            raise Unavailable("too many keys of the source are being fetched")
        task = self._start(request.name, self._fetch(request))
        self._busy += 1
        task.add_done_callback(self._fetch_ended)
        return task

    def _fetch_ended(self, task: "asyncio.Task[None]") -> None:
        self._busy -= 1

    async def _fetch(self, request: KeyRequest) -> None:
        try:
            content = await self.fetch_counted(request.address, request.content)
            self._store(request, (request.load or _load_certificate)(content))
        except (OSError, ValueError) as error:
            if isinstance(error, (KeyNotFound, ValueError)):
                self._cached.pop(request.name, None)  # the host has answered: the key that it sent before is invalid
            if isinstance(error, KeyNotFound):
                _add_newest(self._missing, request.name, self.clock.monotonic() + PAUSE)
            raise Unavailable(f"the signing key could not be fetched: {error}", retry_after=20) from error

    async def _renew(self, cached: CachedKey) -> None:
        request = cached.request
        try:
            content = await self._fetch_uncounted(request.address, request.content)
            self._store(request, (request.load or _load_certificate)(content))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not isinstance(error, KeyNotFound):
                self._extend(request.name)
            signals.emit("key_renewal_failed", key=request.name, error=str(error))

    def _store(self, request: KeyRequest, key: Any) -> None:
        now = self.clock.monotonic()
        _add_newest(self._cached, request.name, CachedKey(request, key, now, now + CACHE_SECONDS, now + RENEW_AFTER))

    def _extend(self, name: str) -> bool:
        """Keep an old key valid while its host does not answer. Returns False if there is none, or it is too old."""
        cached, now = self._cached.get(name), self.clock.monotonic()
        if cached is None or now >= cached.fetched + STALE_SECONDS:
            return False
        cached.expires = max(cached.expires, now + 2 * PAUSE)
        return True


def _add_newest(table: dict[str, Any], name: str, value: Any) -> None:
    """Add an entry as the newest, and remove the oldest if the table is full."""
    table.pop(name, None)
    while len(table) >= MAX_CACHED:
        table.pop(next(iter(table)))
    table[name] = value


def _load_certificate(content: bytes) -> "Certificate":
    """Parse a PEM certificate. Raises ValueError unless its key is RSA, which every verifier of certificates needs."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(content)
        key = certificate.public_key()
    except UnsupportedAlgorithm as error:
        raise ValueError("it is a certificate with an unknown kind of key") from error
    if not isinstance(key, RSAPublicKey):
        raise ValueError("it is not a certificate with an RSA key")
    return certificate
