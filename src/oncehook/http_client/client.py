"""Going out: one small HTTP/1.1 client, and the only way in which anything here calls anybody.

A name is resolved, every address of it is checked, and the address that is dialled is one of those that were checked;
TLS is verified against the name. One time limit holds for the whole exchange, an answer is read up to a limit,
redirects are not followed, and no proxy of the environment is asked. What was wrong is said by SendFailed, in a
sentence that names the host and neither path, header nor body.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oncehook.http_client.exchange import Answer, Connection
from oncehook.http_client.public_networks import why_not
from oncehook.model.errors import SendFailed, SendRefused
from oncehook.observability import tracing

CONNECT_TIMEOUT = 5.0
"""Seconds for one address; the time limit of the whole exchange holds beside it."""

MOST_TRIED = 4
MOST_BODY = 64 * 1024
KEPT_IDLE = 8
MOST_TARGETS = 100
IDLE_SECONDS = 4.0
"""Less than the servers that close soonest, or many requests would meet a connection that is being closed."""

Address = tuple[int, tuple[Any, ...]]
"""A socket family and what `connect` takes."""
Resolve = Callable[[str, int], Awaitable[list[Address]]]

_URL = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?](?:(?!#)[!-~])*)?"
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"})


@dataclass(frozen=True, slots=True)
class Url:
    """An http or https address, taken apart."""

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
        """As much of it as may be told: a path or query may hold a secret."""
        return f"{self.scheme}://{self.authority}"


def parse_url(text: str) -> Url:
    """Raises ValueError, with a sentence that does not repeat the address."""
    found = _URL.fullmatch(text)
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and not 0 < port < 65536):
        raise ValueError(
            "expected an address such as https://host:port/path, in ASCII, without user name, password or fragment"
        )
    scheme = found["scheme"].lower()
    path = found["path"] or "/"
    host = (found["v6"] or found["name"]).rstrip(".").lower()
    return Url(scheme, host, port or (443 if scheme == "https" else 80), path if path[0] == "/" else "/" + path)


def is_sendable(name: str, value: str) -> bool:
    """Whether a header can be sent as it is: nothing in it could end its line, and its name is not one of ours."""
    return bool(_NAME.fullmatch(name)) and name.lower() not in _OURS and bool(_VALUE.fullmatch(value))


class Outgoing:
    """The client. Connections that may be used again are kept for a few seconds, a few per target."""

    def __init__(
        self, *, context: ssl.SSLContext | None = None, resolve: Resolve | None = None, keep: int = KEPT_IDLE
    ) -> None:
        self._context = context
        self.resolve = resolve or look_up_name
        self.keep = keep
        self._idle: dict[tuple[str, bool], list[Connection]] = {}

    async def send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        trusted: bool,
        timeout: float,  # noqa: ASYNC109  # it is part of what may be asked of a target, as the errors tell
        most: int = MOST_BODY,
    ) -> Answer:
        """POST: the answer, whatever its status. Only for `trusted` targets may the address be other than public.

        `most` bytes of the answer's body are read.
        It may be received twice: a connection that is used again can be lost before anything of an answer came, and
        then it is sent anew. Raises SendFailed; SendRefused if nothing was sent because it must not be.
        """

        def request(headers: Mapping[str, str]) -> Awaitable[Answer]:
            return self._request("POST", url, body, headers, trusted=trusted, timeout=timeout, most=most)

        return await (request(headers) if tracing.active is None else tracing.active.post(url, headers, request))

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        trusted: bool,
        timeout: float,  # noqa: ASYNC109  # as above
        most: int = MOST_BODY,
    ) -> Answer:
        """GET, by the same rules."""
        return await self._request("GET", url, None, headers, trusted=trusted, timeout=timeout, most=most)

    async def close(self) -> None:
        """Close what was kept."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

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
    ) -> Answer:
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
            raise SendFailed(f"{to.origin} cannot be reached: {_said(error)}") from None

    async def _exchange(self, to: Url, message: bytes, trusted: bool, most: int) -> Answer:
        connection = self._take_idle(to.origin, trusted)
        if connection is not None:
            try:
                return await self._ask(connection, to, message, trusted, most)
            except SendFailed:
                if connection.heard:
                    raise
        connection = await self._dial(to, trusted)
        return await self._ask(connection, to, message, trusted, most)

    async def _ask(self, connection: Connection, to: Url, message: bytes, trusted: bool, most: int) -> Answer:
        reusable = False
        try:
            answer, reusable = await connection.ask(message, to.origin, most)
            return answer
        finally:
            if reusable:
                self._keep_idle(connection, to.origin, trusted)
            else:
                connection.close()

    # -- dialling -------------------------------------------------------------------------------------------------

    async def _dial(self, to: Url, trusted: bool) -> Connection:
        try:
            addresses = await self.resolve(to.host, to.port)
        except (OSError, UnicodeError):
            raise SendFailed(f"{to.host} has no address: the name cannot be resolved") from None
        if not addresses:
            raise SendFailed(f"{to.host} has no address")
        if not trusted:
            for _, address in addresses:
                check_address(to, address)
        failed: OSError = OSError("no address was tried")
        for family, address in addresses[:MOST_TRIED]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    return await self._connect(to, family, address, trusted)
            except OSError as error:  # TimeoutError is one
                failed = error
        raise SendFailed(f"{to.origin} cannot be reached: {_said(failed)}")

    async def _connect(self, to: Url, family: int, address: tuple[Any, ...], trusted: bool) -> Connection:
        loop = asyncio.get_running_loop()
        dialled = socket.socket(family, socket.SOCK_STREAM)
        dialled.setblocking(False)
        try:
            await loop.sock_connect(dialled, address)
            if not trusted:
                check_address(to, dialled.getpeername())
        except BaseException:
            dialled.close()
            raise
        secure = self._tls() if to.scheme == "https" else None
        name = to.host if secure else None
        _, connection = await loop.create_connection(Connection, sock=dialled, ssl=secure, server_hostname=name)
        return connection

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    # -- connections that are used again --------------------------------------------------------------------------

    def _take_idle(self, origin: str, trusted: bool) -> Connection | None:
        kept = self._idle.get((origin, trusted), [])
        while kept:
            connection = kept.pop()
            if connection.is_open:
                connection.wake()
                return connection
        return None

    def _keep_idle(self, connection: Connection, origin: str, trusted: bool) -> None:
        if len(self._idle) > MOST_TARGETS:
            self._idle = {key: kept for key, kept in self._idle.items() if any(one.is_open for one in kept)}
        kept = self._idle[origin, trusted] = [one for one in self._idle.get((origin, trusted), []) if one.is_open]
        if len(kept) < self.keep and connection.is_open:
            connection.rest(IDLE_SECONDS)
            kept.append(connection)
        else:
            connection.close()


def check_address(to: Url, address: tuple[Any, ...]) -> None:
    reason = why_not(address[0])
    if reason is not None:
        raise SendRefused(
            f"{to.host} is at {address[0]}, which is {reason}: only a target that is written in the configuration "
            "file may be there"
        )


async def look_up_name(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the system's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys((int(family), tuple(address)) for family, _, _, _, address in found))


def compose(method: str, to: Url, headers: Mapping[str, str], body: bytes | None, *, close: bool) -> bytes:
    """The request as bytes. A header that could end its line, or that is not the caller's to set, is refused."""
    lines = [f"{method} {to.path} HTTP/1.1", f"Host: {to.authority}"]
    for name, value in headers.items():
        if not is_sendable(name, value):
            shown = name if _NAME.fullmatch(name) else "a header"
            raise SendRefused(f"{shown} cannot be sent: its name is not allowed, or its value is not one line of text")
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _said(error: OSError) -> str:
    """What an error of the system says, without what it says it about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, TimeoutError):
        return f"it took longer than {CONNECT_TIMEOUT:g} s to connect"
    return error.strerror or type(error).__name__
