"""Fetching and caching certificates, against a real TLS server with its own certificate authority."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from oncehook.concurrency.clock import Clock
from oncehook.model.errors import Unavailable
from oncehook.providers import certificates
from oncehook.providers.certificates import MAX_BYTES, MAX_CACHED, MAX_CONCURRENT_FETCHES, Certificates, Fetch, fetch
from tests.support.providers import CERTIFICATE_URL, NOW, pem_of
from tests.support.servers import free_port
from tests.support.tls_server import Behavior, Issued, TlsServer, dripping, endless, issue, ok, pem, silent


class Moving(Clock):
    """A clock whose monotonic time the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return self.at


HOST = "sns.eu-west-1.amazonaws.com"


@pytest.fixture(scope="module")
def authority() -> Issued:
    return issue("an authority of this test")


@pytest.fixture(scope="module")
def trusting(authority: Issued) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem(authority[0]).decode())


@pytest.fixture
def serve(authority: Issued, tmp_path: Path) -> Iterator[Callable[..., TlsServer]]:
    servers: list[TlsServer] = []

    def start(behavior: Behavior | bytes, name: str = HOST) -> TlsServer:
        chain = tmp_path / "chain.pem"
        chain.write_bytes(pem(*issue(name, authority)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        servers.append(TlsServer(context, behavior))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


# -- fetching -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_certificate_is_fetched_with_one_request(
    serve: Callable[..., TlsServer], trusting: ssl.SSLContext
) -> None:
    server = serve(ok(pem_of()))
    assert await fetch(CERTIFICATE_URL, context=trusting, dial=server.address) == pem_of()
    (request,) = server.requests
    line, *headers = request.decode().split("\r\n")
    assert line == f"GET {CERTIFICATE_URL.removeprefix(f'https://{HOST}')} HTTP/1.1"
    assert {header.lower() for header in headers if header} == {f"host: {HOST}", "accept: */*", "connection: close"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
        ok(b"abcde", b"Set-Cookie: x"),
    ],
)
async def test_certificate_is_read_in_every_framing_of_http(
    serve: Callable[..., TlsServer], trusting: ssl.SSLContext, answer: bytes
) -> None:
    assert await fetch(f"https://{HOST}/?Action=x&y=z", context=trusting, dial=serve(answer).address) == b"abcde"


@pytest.mark.anyio
async def test_fetch_ignores_proxies_of_the_environment(
    serve: Callable[..., TlsServer], trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert await fetch(CERTIFICATE_URL, context=trusting, dial=serve(ok(b"x")).address) == b"x"


@pytest.mark.anyio
async def test_fetch_does_not_follow_a_redirect(serve: Callable[..., TlsServer], trusting: ssl.SSLContext) -> None:
    canary = serve(ok(pem_of()))
    location = b"Location: https://127.0.0.1:%d/" % canary.address[1]
    for status in (301, 302, 303, 307, 308):
        server = serve(b"HTTP/1.1 %d Elsewhere\r\n%s\r\nContent-Length: 0\r\n\r\n" % (status, location))
        with pytest.raises(OSError, match=f"answered {status}"):
            await fetch(CERTIFICATE_URL, context=trusting, dial=server.address)
    assert canary.connections == 0


FAULTS: dict[str, Behavior | bytes] = {
    "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "an error": b"HTTP/1.1 500 Oops\r\n\r\n",
    "nothing": b"",
    "not HTTP": b"SSH-2.0-x\r\n",
    "a header too long": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    "cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "a broken chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a byte too much": ok(b"x" * (MAX_BYTES + 1)),
    "no end": endless,
    "no handshake": silent,
    "headers that drip": partial(dripping, b"HTTP/1.1 200 OK\r\nX: "),
    "a body that drips": partial(dripping, b"HTTP/1.1 200 OK\r\n\r\n"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("fault", FAULTS)
async def test_certificate_of_a_failing_server_is_unavailable_within_the_time_limit(
    fault: str, serve: Callable[..., TlsServer], trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "TIME_LIMIT", 0.5)
    server = serve(FAULTS[fault])
    async with asyncio.timeout(30):
        await assert_unavailable(partial(fetch, context=trusting, dial=server.address))
    assert server.connections == 1


@pytest.mark.anyio
async def test_silent_server_does_not_delay_other_fetches(
    serve: Callable[..., TlsServer], trusting: ssl.SSLContext
) -> None:
    hanging = asyncio.create_task(fetch(CERTIFICATE_URL, context=trusting, dial=serve(silent).address))
    assert await fetch(CERTIFICATE_URL, context=trusting, dial=serve(ok(b"x")).address) == b"x"
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


@pytest.mark.anyio
async def test_certificate_of_a_missing_server_is_unavailable(trusting: ssl.SSLContext) -> None:
    await assert_unavailable(partial(fetch, context=trusting, dial=("127.0.0.1", free_port())))


@pytest.mark.anyio
async def test_server_with_another_name_or_authority_is_not_trusted(
    serve: Callable[..., TlsServer], trusting: ssl.SSLContext
) -> None:
    other = serve(ok(pem_of()), name="sns.us-east-1.amazonaws.com")
    await assert_unavailable(partial(fetch, context=trusting, dial=other.address))
    await assert_unavailable(partial(fetch, dial=serve(ok(pem_of())).address))
    assert other.requests == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    "content", [b"", b"not PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None]
)
async def test_response_that_is_not_a_certificate_with_an_rsa_key_is_unavailable(content: bytes | None) -> None:
    await assert_unavailable(serving(pem(issue(HOST)[0]) if content is None else content))


def serving(content: bytes) -> Fetch:
    """A fetch that returns the same content for every address."""

    async def fetching(url: str) -> bytes:
        return content

    return fetching


async def assert_unavailable(fetching: Fetch) -> None:
    """A failed fetch does not decide about the signature: the sender retries, and the certificate is fetched again."""
    clock = Moving()
    known = Certificates(fetch=fetching, clock=clock)
    with pytest.raises(Unavailable) as caught:
        await known.ensure(CERTIFICATE_URL)
    assert caught.value.retry_after > 0
    assert known.get(CERTIFICATE_URL) is None
    known.fetch = serving(pem_of())
    clock.at += 61  # one that was not found is not requested again at once
    await known.ensure(CERTIFICATE_URL)
    assert known.get(CERTIFICATE_URL) is not None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url", ["http://sns.eu-west-1.amazonaws.com/", "file:///etc/passwd", "https:///x", "sns.eu-west-1.amazonaws.com"]
)
async def test_only_https_is_fetched(url: str) -> None:
    with pytest.raises(OSError, match="not https with a host"):
        await fetch(url)


# -- one fetch at a time --------------------------------------------------------------------------------------------


class Gate:
    """A fetch that waits until the test releases it."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content or pem_of()
        self.urls: list[str] = []
        self.open = asyncio.Event()
        self.begun = asyncio.Event()

    async def __call__(self, url: str) -> bytes:
        self.urls.append(url)
        self.begun.set()
        await self.open.wait()
        return self.content


@pytest.mark.anyio
async def test_fifty_deliveries_share_one_fetch() -> None:
    gate = Gate()
    known = Certificates(fetch=gate)
    waiters = [asyncio.create_task(known.ensure(CERTIFICATE_URL)) for _ in range(50)]
    await gate.begun.wait()
    gate.open.set()
    await asyncio.gather(*waiters)
    await known.ensure(CERTIFICATE_URL)
    assert gate.urls == [CERTIFICATE_URL]


@pytest.mark.anyio
async def test_fifty_deliveries_share_one_failed_fetch() -> None:
    gate = Gate(b"not PEM")
    waiters = [
        asyncio.create_task(Certificates.ensure(known, CERTIFICATE_URL))
        for known in [Certificates(fetch=gate)]
        for _ in range(50)
    ]
    await gate.begun.wait()
    gate.open.set()
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes) and len(gate.urls) == 1


@pytest.mark.anyio
async def test_cancelled_delivery_does_not_cancel_the_fetch_of_another() -> None:
    gate = Gate()
    known = Certificates(fetch=gate)
    first, second = (asyncio.create_task(known.ensure(CERTIFICATE_URL)) for _ in range(2))
    await gate.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.open.set()
    await second
    assert known.get(CERTIFICATE_URL) is not None


def url(number: int) -> str:
    return CERTIFICATE_URL.replace("0123", f"{number:04x}", 1)


@pytest.mark.anyio
async def test_concurrent_fetches_are_limited() -> None:
    gate = Gate()
    known = Certificates(fetch=gate)
    waiters = [asyncio.create_task(known.ensure(url(number))) for number in range(MAX_CONCURRENT_FETCHES)]
    await gate.begun.wait()
    with pytest.raises(Unavailable, match="too many"):
        await known.ensure(url(99))
    gate.open.set()
    await asyncio.gather(*waiters)
    await known.ensure(url(99))


@pytest.mark.anyio
async def test_number_of_cached_certificates_is_bounded() -> None:
    clock = Moving()
    known = Certificates(fetch=serving(pem_of()), clock=clock)
    for number in range(MAX_CACHED + 3):
        clock.at += 3
        await known.ensure(url(number))
    kept = [number for number in range(MAX_CACHED + 3) if known.get(url(number))]
    assert kept == list(range(3, MAX_CACHED + 3))
