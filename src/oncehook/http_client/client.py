"""A small HTTP/1.1 client. Every outgoing HTTP call of Oncehook goes through it.

The client resolves a name, checks every address of it, and connects only to a checked address. TLS is verified against
the name. One time limit covers the whole exchange, and responses are read up to a size limit. The client does not
follow redirects and ignores proxies of the environment. Errors are SendFailed; their message names the host, and never
a path, header or body.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oncehook.http_client.exchange import Connection, Response
from oncehook.http_client.public_networks import blocked_reason
from oncehook.model.errors import SendFailed, SendRefused
from oncehook.observability import tracing

CONNECT_TIMEOUT = 5.0
"""Seconds to connect to one address. The time limit of the whole exchange applies too."""

MAX_ADDRESSES_TRIED = 4
MAX_RESPONSE_BODY = 64 * 1024
KEPT_IDLE = 8
MAX_IDLE_ORIGINS = 100
IDLE_SECONDS = 4.0
"""Shorter than the idle timeout of common servers. Otherwise many requests would reuse a connection that is closing."""

Address = tuple[int, tuple[Any, ...]]
"""A socket family and the argument of `connect`."""
Resolve = Callable[[str, int], Awaitable[list[Address]]]

_URL = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?](?:(?!#)[!-~])*)?"
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESERVED = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}
)


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of an http or https address."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port: the part that messages may show. A path or query may hold a secret."""
        return f"{self.scheme}://{self.authority}"


def parse_url(text: str) -> Url:
    """Split an address. Raises ValueError with a message that does not repeat it."""
    match = _URL.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port < 65536):
        raise ValueError(
            "expected an address such as https://host:port/path, in ASCII, without user name, password or fragment"
        )
    scheme = match["scheme"].lower()
    path = match["path"] or "/"
    host = (match["v6"] or match["name"]).rstrip(".").lower()
    return Url(scheme, host, port or (443 if scheme == "https" else 80), path if path[0] == "/" else "/" + path)


def is_sendable(name: str, value: str) -> bool:
    """Whether a header can be sent unchanged: it has no line break, and the client does not set it itself."""
    return bool(_NAME.fullmatch(name)) and name.lower() not in _RESERVED and bool(_VALUE.fullmatch(value))


class HttpClient:
    """The client. It keeps up to `keep` idle connections per origin for a few seconds."""

    def __init__(
        self, *, context: ssl.SSLContext | None = None, resolve: Resolve | None = None, keep: int = KEPT_IDLE
    ) -> None:
        self._context = context
        self.resolve = resolve or resolve_name
        self.keep = keep
        self._idle: dict[tuple[str, bool], list[Connection]] = {}

    async def send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        trusted: bool,
        timeout: float,  # noqa: ASYNC109  # errors name this limit
        most: int = MAX_RESPONSE_BODY,
    ) -> Response:
        """Send a POST and return the response, whatever its status. Reads up to `most` bytes of its body.

        Only `trusted` targets may have an address that is not public. A target may receive the request twice: if a
        reused connection is lost before the response begins, the client sends the request again on a new one.
        Raises SendFailed; SendRefused if the request is not allowed and nothing was sent.
        """

        def request(headers: Mapping[str, str]) -> Awaitable[Response]:
            return self._request("POST", url, body, headers, trusted=trusted, timeout=timeout, most=most)

        return await (request(headers) if tracing.active is None else tracing.active.post(url, headers, request))

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        trusted: bool,
        timeout: float,  # noqa: ASYNC109  # as above
        most: int = MAX_RESPONSE_BODY,
    ) -> Response:
        """Send a GET, by the same rules as `send`."""
        return await self._request("GET", url, None, headers, trusted=trusted, timeout=timeout, most=most)

    async def close(self) -> None:
        """Close the idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    async def _request(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        trusted: bool,
        timeout: float,  # noqa: ASYNC109  # as above
        most: int,
    ) -> Response:
        try:
            to = parse_url(url)
        except ValueError as error:
            raise SendRefused(f"the target's address is not usable: {error}") from None
        message = compose(method, to, headers, body, close=self.keep == 0)
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(to, message, trusted, most)
        except TimeoutError:
            raise SendFailed(f"{to.origin} did not answer within {timeout:g} s") from None
        except OSError as error:
            raise SendFailed(f"{to.origin} cannot be reached: {_error_summary(error)}") from None

    async def _exchange(self, to: Url, message: bytes, trusted: bool, most: int) -> Response:
        connection = self._take_idle(to.origin, trusted)
        if connection is not None:
            try:
                return await self._send_over(connection, to, message, trusted, most)
            except SendFailed:
                if connection.got_data:
                    raise
        connection = await self._dial(to, trusted)
        return await self._send_over(connection, to, message, trusted, most)

    async def _send_over(self, connection: Connection, to: Url, message: bytes, trusted: bool, most: int) -> Response:
        reusable = False
        try:
            response, reusable = await connection.request(message, to.origin, most)
            return response
        finally:
            if reusable:
                self._keep_idle(connection, to.origin, trusted)
            else:
                connection.close()

    # -- connecting -----------------------------------------------------------------------------------------------

    async def _dial(self, to: Url, trusted: bool) -> Connection:
        try:
            addresses = await self.resolve(to.host, to.port)
        except (OSError, UnicodeError):
            raise SendFailed(f"the name {to.host} cannot be resolved") from None
        if not addresses:
            raise SendFailed(f"the name {to.host} has no address")
        if not trusted:
            for _, address in addresses:
                check_address(to, address)
        last_error: OSError = OSError("no address was tried")
        for family, address in addresses[:MAX_ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    return await self._connect(to, family, address, trusted)
            except OSError as error:  # includes TimeoutError
                last_error = error
        raise SendFailed(f"{to.origin} cannot be reached: {_error_summary(last_error)}")

    async def _connect(self, to: Url, family: int, address: tuple[Any, ...], trusted: bool) -> Connection:
        loop = asyncio.get_running_loop()
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setblocking(False)
        try:
            await loop.sock_connect(opened, address)
            if not trusted:
                check_address(to, opened.getpeername())
        except BaseException:
            opened.close()
            raise
        secure = self._tls() if to.scheme == "https" else None
        name = to.host if secure else None
        _, connection = await loop.create_connection(Connection, sock=opened, ssl=secure, server_hostname=name)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    # -- idle connections -----------------------------------------------------------------------------------------

    def _take_idle(self, origin: str, trusted: bool) -> Connection | None:
        idle = self._idle.get((origin, trusted), [])
        while idle:
            connection = idle.pop()
            if connection.is_open:
                connection.keep_open()
                return connection
        return None

    def _keep_idle(self, connection: Connection, origin: str, trusted: bool) -> None:
        if len(self._idle) > MAX_IDLE_ORIGINS:
            self._idle = {key: idle for key, idle in self._idle.items() if any(other.is_open for other in idle)}
        still_open = [other for other in self._idle.get((origin, trusted), []) if other.is_open]
        idle = self._idle[origin, trusted] = still_open
        if len(idle) < self.keep and connection.is_open:
            connection.close_after(IDLE_SECONDS)
            idle.append(connection)
        else:
            connection.close()


def check_address(to: Url, address: tuple[Any, ...]) -> None:
    """Raise SendRefused for an address that is not public."""
    reason = blocked_reason(address[0])
    if reason is not None:
        raise SendRefused(
            f"{to.host} has the address {address[0]}, which is {reason}: only a target in the configuration file may "
            "have an address that is not public"
        )


async def resolve_name(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the order of the system's resolver."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys((int(family), tuple(address)) for family, _, _, _, address in entries))


def compose(method: str, to: Url, headers: Mapping[str, str], body: bytes | None, *, close: bool) -> bytes:
    """The request as bytes. Raises SendRefused for a header with a line break, or one that only the client sets."""
    lines = [f"{method} {to.path} HTTP/1.1", f"Host: {to.authority}"]
    for name, value in headers.items():
        if not is_sendable(name, value):
            label = name if _NAME.fullmatch(name) else "a header"
            raise SendRefused(f"{label} cannot be sent: its name is not allowed, or its value is not one line of text")
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _error_summary(error: OSError) -> str:
    """The message of a system error, without the address or file that it names."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({getattr(error, 'reason', None) or type(error).__name__})"
    if isinstance(error, TimeoutError):
        return f"it took longer than {CONNECT_TIMEOUT:g} s to connect"
    return error.strerror or type(error).__name__
