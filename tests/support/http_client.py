"""The HTTP client in tests: a client that is closed at the end, one POST, and a resolver that knows the address."""

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from oncehook.http_client.client import Address, HttpClient, Resolve
from oncehook.http_client.exchange import Response

BODY = b'{"id":"evt_1"}'


@asynccontextmanager
async def open_client(
    *, context: ssl.SSLContext | None = None, resolve: Resolve | None = None
) -> AsyncIterator[HttpClient]:
    client = HttpClient(context=context, resolve=resolve)
    try:
        yield client
    finally:
        await client.close()


async def post(
    url: str,
    *,
    trusted: bool = True,
    seconds: float = 5.0,
    body: bytes = BODY,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    resolve: Resolve | None = None,
) -> Response:
    """Sends one request with a new client."""
    sent = {"Content-Type": "application/json"} if headers is None else headers
    async with open_client(context=context, resolve=resolve) as client:
        return await client.send(url, body, sent, trusted=trusted, timeout=seconds)


def resolve_to(*addresses: tuple[str, int]) -> Resolve:
    """A resolver that returns these addresses for every name."""

    async def resolve(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, address) for address in addresses]

    return resolve
