"""Going out, to real servers that fail, stall, redirect and close early, and by every way to be led astray."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from oncehook.http_client import client as outgoing
from oncehook.http_client.client import MOST_BODY, Address, HttpClient, parse_url
from oncehook.http_client.exchange import Response
from oncehook.model.errors import SendFailed, SendRefused
from tests.http_client.test_public_networks import REFUSED
from tests.support.http_target import Answering, Request, close_after, drip_after, endless, receiving, said, stall_after
from tests.support.servers import free_port
from tests.support.tls_server import Canary, issue, pem

pytestmark = pytest.mark.anyio

BODY = b'{"id":"evt_1"}'


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The loop of a user's app, and the one of `serve`."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@asynccontextmanager
async def client(**given: object) -> AsyncIterator[HttpClient]:
    made = HttpClient(**given)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


async def send(
    url: str, *, trusted: bool = True, seconds: float = 5.0, body: bytes = BODY, **given: object
) -> Response:
    headers = given.pop("headers", {"Content-Type": "application/json"})
    async with client(**given) as made:
        return await made.send(url, body, headers, trusted=trusted, timeout=seconds)  # type: ignore[arg-type]


def at(*addresses: tuple[str, int]) -> outgoing.Resolve:
    """A name server that answers with these."""

    async def resolve(host: str, port: int) -> list[Address]:
        return [(socket.AF_INET6 if ":" in a[0] else socket.AF_INET, a) for a in addresses]

    return resolve


# -- addresses as text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin", "path"),
    [
        ("http://localhost:3000/hooks", "http://localhost:3000", "/hooks"),
        ("https://Example.com", "https://example.com", "/"),
        ("HTTPS://example.com.:443?a=b&c", "https://example.com", "/?a=b&c"),
        ("http://[::1]:80/x", "http://[::1]", "/x"),
        ("http://my_service/%7Ehooks;v=1", "http://my_service", "/%7Ehooks;v=1"),
    ],
)
def test_an_address_is_taken_apart(text: str, origin: str, path: str) -> None:
    assert (parse_url(text).origin, parse_url(text).path) == (origin, path)


NOT_URLS = [
    *(
        "",
        "localhost:3000",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:70/",
        "http://",
        "http:///x",
    ),
    *("http://user:password@example.com/", "http://example.com@127.0.0.1/", "http://127.0.0.1\\@example.com/"),
    *("http://example.com:0/", "http://example.com:65536/", "http://example.com:-1/", "http://example.com:8a/"),
    *(
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com/\r\nX: y",
        "http://example.com/\n",
        "\thttp://a/",
    ),
    *(
        "http://１２７.0.0.1/",
        "http://ex\u0430mple.com/",
        "http://example.com/#x",
        "http://[fe80::1%25lo]/",
        "http://[::1/",
    ),
    *("http://example.com/é", "http://%31%32%37.0.0.1/", "http://-a/", "http://a..b:1:2/", "http:/\\example.com/"),
]


@pytest.mark.parametrize("text", NOT_URLS)
async def test_what_is_no_plain_address_is_refused_before_anything_is_asked(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        parse_url(text)
    with pytest.raises(SendRefused, match="not usable"):
        await send(text)


# -- who may be called ----------------------------------------------------------------------------------------------

SPELLINGS = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0177.1", "localhost"),
    *("LOCALHOST", "localhost.", "0", "0.0.0.0", "0x0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[::127.0.0.1]", "[0:0:0:0:0:ffff:7f00:0001]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1."),
]


@pytest.mark.parametrize("host", SPELLINGS)
async def test_this_machine_is_not_called_however_it_is_spelled(host: str) -> None:
    with Canary() as canary, pytest.raises(SendFailed) as caught:
        await send(f"http://{host}:{canary.port}/", trusted=False)
    assert canary.connections == 0
    assert isinstance(caught.value, SendRefused) or "cannot be resolved" in str(caught.value)


@pytest.mark.parametrize("address", [one for one in REFUSED if one[:1].isdigit() or ":" in one])
async def test_a_name_at_an_address_that_is_not_public_is_not_called(address: str) -> None:
    with Canary() as canary, pytest.raises(SendRefused, match="configuration"):
        await send(
            f"http://innocent.example:{canary.port}/",
            trusted=False,
            resolve=at((address.partition("%")[0], canary.port)),
        )
    assert canary.connections == 0


@pytest.mark.parametrize("order", [1, -1])
async def test_one_bad_address_among_good_ones_is_enough(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "blocked_reason", lambda address: None if address == "127.0.0.2" else "loopback")
    with Canary() as canary, pytest.raises(SendRefused, match=r"127\.0\.0\.1, which is loopback"):
        answers = [("127.0.0.2", canary.port), ("127.0.0.1", canary.port)][::order]
        await send(f"http://innocent.example:{canary.port}/", trusted=False, resolve=at(*answers))
    assert canary.connections == 0


async def test_the_address_that_is_dialled_is_the_one_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that gives a good address to whoever checks and a bad one to whoever dials is asked once."""
    monkeypatch.setattr(outgoing, "blocked_reason", lambda address: None if address == "127.0.0.2" else "loopback")
    asked = 0

    async def flipping(host: str, port: int) -> list[Address]:
        nonlocal asked
        asked += 1
        return [(socket.AF_INET, ("127.0.0.2" if asked == 1 else "127.0.0.1", port))]

    with Canary() as canary:
        async with receiving(host="127.0.0.2", port=canary.port) as receiver, client(resolve=flipping) as made:
            url = f"http://rebinding.example:{canary.port}/"
            assert (await made.send(url, BODY, {}, trusted=False, timeout=5)).status == 200
            assert (asked, receiver.connections) == (1, 1)
            await made.close()
            with pytest.raises(SendRefused):
                await made.send(url, BODY, {}, trusted=False, timeout=5)
            assert (asked, receiver.connections) == (2, 1)
    assert canary.connections == 0


async def test_a_socket_that_ended_up_elsewhere_is_not_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies between: the peer of the socket itself is checked before a byte is sent."""
    seen: list[str] = []
    monkeypatch.setattr(
        outgoing, "blocked_reason", lambda address: seen.append(address) or (None if len(seen) < 2 else "bad")
    )
    async with receiving() as receiver:
        with pytest.raises(SendRefused):
            await send(receiver.url, trusted=False)
        assert seen == ["127.0.0.1", "127.0.0.1"] and receiver.requests == []


async def test_a_name_that_cannot_be_resolved_is_a_failure_and_skips_no_check() -> None:
    async def broken(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    for trusted in (True, False):
        with pytest.raises(SendFailed, match=r"name\.example cannot be resolved"):
            await send("http://name.example/", trusted=trusted, resolve=broken)
        with pytest.raises(SendFailed, match="has no address"):
            await send("http://name.example/", trusted=trusted, resolve=at())


async def test_a_trusted_target_may_be_this_machine_and_its_connection_is_for_trusted_ones_alone() -> None:
    async with receiving() as receiver, client() as made:
        assert (await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 200
        with pytest.raises(SendRefused):
            await made.send(receiver.url, BODY, {}, trusted=False, timeout=5)
        assert len(receiver.requests) == 1


# -- what is sent ---------------------------------------------------------------------------------------------------


async def test_a_request_is_what_was_given_and_nothing_else() -> None:
    async with receiving(said(201, "X-Y: z", body=b"done")) as receiver:
        answer = await send(receiver.url, headers={"Content-Type": "text/x", "X-A": "b\xe9"})
        assert (answer.status, answer.headers["x-y"], answer.body, answer.whole) == (201, "z", b"done", True)
        (request,) = receiver.requests
        assert request.line == "POST /hooks?token=hidden-in-the-query HTTP/1.1"
        assert request.body == BODY
        assert request.headers == {
            "host": f"127.0.0.1:{receiver.port}",
            "content-type": "text/x",
            "x-a": "b\xe9",
            "content-length": str(len(BODY)),
        }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            ("X-A", f"a{bad}b")
            for bad in ("\r\nX-Evil: 1", "\n", "\r", "\x00", "\r\n folded", "\x0b", "\x1b[0m", "\x7f", "€")
        ],
        *[(bad, "x") for bad in ("", "X A", "X:A", "X\r\nY", "X\x00", "Ä", "x" * 201)],
        *[(bad, "x") for bad in ("Host", "content-length", "Transfer-Encoding", "connection", "Expect", "upgrade")],
    ],
)
async def test_a_header_that_could_be_more_than_one_line_is_refused(name: str, value: str) -> None:
    async with receiving() as receiver:
        with pytest.raises(SendRefused, match="cannot be sent"):
            await send(receiver.url, headers={name: value})
        assert receiver.connections == 0


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Canary() as canary:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
        async with receiving() as receiver:
            assert (await send(receiver.url)).status == 200
    assert canary.connections == 0


# -- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    with Canary() as canary:
        async with receiving(said(status, f"Location: http://127.0.0.1:{canary.port}/")) as receiver:
            assert (await send(receiver.url)).status == status
            assert receiver.connections == 1
    assert canary.connections == 0


ANSWERS: dict[str, tuple[Answering, int, bytes]] = {
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "an error": (said(500, body=b"oops"), 500, b"oops"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde"),
    "until it closes": (close_after(b"HTTP/1.0 200 OK\r\n\r\nabcde"), 200, b"abcde"),
    "after a 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + said(202, body=b"x"), 202, b"x"),
    "after a 103": (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + said(202, body=b"x"), 202, b"x"),
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_an_answer_may_come_in_any_way_that_http_has(how: str) -> None:
    answer, status, body = ANSWERS[how]
    async with receiving(answer) as receiver:
        got = await send(receiver.url)
        assert (got.status, got.body, got.whole) == (status, body, True)
        assert "link" not in got.headers


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
FAULTS: dict[str, tuple[Answering, str]] = {
    "closes at once": (close_after(), "without a response"),
    "closes in its headers": (close_after(b"HTTP/1.1 200 OK\r\nX: "), "before the response was complete"),
    "closes in its body": (
        close_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
        "before the response was complete",
    ),
    "closes in a chunk": (
        close_after(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc"),
        "before the response was complete",
    ),
    "closes after a 100": (close_after(b"HTTP/1.1 100 Continue\r\n\r\n"), "before the response was complete"),
    "is not HTTP": (b"SSH-2.0-x\r\n", "is not HTTP/1.1"),
    "a broken chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "is not HTTP/1.1"),
    "changes protocol": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxx",
        "is not HTTP/1.1",
    ),
    "headers without end": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "response headers that are too long"),
    "trailers without end": (CHUNKED + b"X-Trailer: aaaaaaaa\r\n" * 30_000, "too many bytes"),
    "one trailer without end": (CHUNKED + b"X-Trailer: " + b"a" * 600_000, "too many bytes"),
    "100 without end": (b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, "response headers that are too long"),
    "says nothing": (stall_after(), "did not answer within 0.5 s"),
    "stalls in its headers": (stall_after(b"HTTP/1.1 200 OK\r\nContent-"), "did not answer within 0.5 s"),
    "stalls after its headers": (stall_after(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), "did not answer within"),
    "drips headers": (drip_after(b"HTTP/1.1 200 OK\r\nX: "), "did not answer within 0.5 s"),
    "drips a body": (drip_after(b"HTTP/1.1 200 OK\r\n\r\n"), "did not answer within 0.5 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_target_that_gives_no_whole_answer_is_a_failure_and_soon(fault: str) -> None:
    behaviour, sentence = FAULTS[fault]
    async with receiving(behaviour) as receiver, asyncio.timeout(20):
        with pytest.raises(SendFailed, match=sentence) as caught:
            await send(receiver.url, seconds=0.5)
        assert receiver.connections == 1
        assert str(caught.value).startswith(f"http://127.0.0.1:{receiver.port} ")
        assert "hidden" not in str(caught.value) and "hooks" not in str(caught.value)


async def test_trailers_are_not_read_without_end() -> None:
    sent = 0

    async def trailers(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        while sent < 200 * 2**20:
            writer.write(b"X-Trailer: aaaaaaaaaaaaaaaaaaaaa\r\n" * 1000)
            sent += 34_000
            await writer.drain()

    async with receiving(trailers) as receiver, asyncio.timeout(30):
        with pytest.raises(SendFailed, match="too many bytes"):
            await send(receiver.url, seconds=20)
        while receiver.under_way:
            await asyncio.sleep(0.001)
    assert sent < 20 * 2**20, "as much as fits into the buffers of two sockets"


async def test_trailers_are_not_headers() -> None:
    async with receiving(CHUNKED + b"Retry-After: 5\r\nX-Trailer: a\r\n\r\n") as receiver:
        answer = await send(receiver.url)
        assert (answer.body, answer.whole, answer.headers) == (b"a", True, {"transfer-encoding": "chunked"})


async def test_a_body_in_chunks_of_one_byte_is_read_whole() -> None:
    chunks = b"1\r\na\r\n" * MOST_BODY + b"0\r\n\r\n"
    async with receiving(CHUNKED.partition(b"1\r\n")[0] + chunks) as receiver:
        answer = await send(receiver.url)
        assert (len(answer.body), answer.whole) == (MOST_BODY, True)


@pytest.mark.parametrize("behaviour", [endless, said(200, body=b"x" * (MOST_BODY + 1))], ids=["endless", "a byte more"])
async def test_of_an_answer_that_is_too_large_the_status_counts_and_the_rest_is_not_read(behaviour: Answering) -> None:
    async with receiving(behaviour) as receiver, asyncio.timeout(20):
        answer = await send(receiver.url)
        assert (answer.status, len(answer.body), answer.whole) == (200, MOST_BODY, False)


async def test_an_answer_counts_although_the_body_was_not_taken() -> None:
    """As from a target that refuses a large body by its headers alone."""

    gone = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said(413))
        await writer.drain()
        await gone.wait()
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        assert (await send(f"http://127.0.0.1:{port}/", body=b"x" * 8_000_000)).status == 413
        gone.set()


async def test_a_target_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(SendFailed, match="cannot be reached"):
        await send(f"http://127.0.0.1:{free_port()}/")


async def test_the_next_address_is_tried_when_the_first_is_dead() -> None:
    async with receiving() as receiver:
        addresses = at(("127.0.0.1", free_port()), ("127.0.0.1", receiver.port))
        assert (await send("http://two.example/", resolve=addresses)).status == 200


async def test_a_target_that_takes_no_connection_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        try:
            with pytest.raises(SendFailed, match=r"0\.3 s to connect"):
                await send("http://full.example/", resolve=at(full.getsockname()))
        finally:
            for one in waiting:
                one.close()


# -- connections that are used again --------------------------------------------------------------------------------


async def test_a_connection_is_used_again_while_the_target_keeps_it() -> None:
    async with receiving(said(200), said(500, body=b"x"), said(200, "Connection: close"), said(200)) as receiver:
        async with client() as made:
            for _ in range(4):
                await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        assert (receiver.connections, len(receiver.requests)) == (2, 4)


async def test_a_connection_that_was_closed_while_idle_costs_nothing() -> None:
    """Also when the close and the next request cross each other."""

    async def answer_then_close(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(said(200))
        await writer.drain()
        writer.close()

    async with receiving(answer_then_close) as receiver, client() as made:
        for _ in range(20):
            assert (await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 200


async def test_an_answer_that_was_not_asked_for_is_never_taken_for_the_next_one() -> None:
    more = said(200, "X-Y: smuggled", body=b"smuggled")
    for extra in (more, more[:20], more[:-3]):
        async with receiving(said(500) + extra, said(404)) as receiver, client() as made:
            first = await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)
            assert (first.status, first.body, "x-y" in first.headers) == (500, b"", False)
            assert (await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 404
            assert receiver.connections == 2


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "IDLE_SECONDS", 0.05)
    async with receiving() as receiver, client() as made:
        await made.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        (kept,) = made._idle[f"http://127.0.0.1:{receiver.port}", True]
        async with asyncio.timeout(10):
            while kept.is_open:
                await asyncio.sleep(0.01)


# -- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for target.example, and a client's that trusts its authority."""
    authority = issue("an authority of this test")
    chain = tmp_path_factory.mktemp("tls") / "chain.pem"
    Path(chain).write_bytes(pem(*issue("target.example", authority)))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(chain)
    return serving, ssl.create_default_context(cadata=pem(authority[0]).decode())


async def test_tls_is_verified_against_the_name_though_an_address_is_dialled(
    chains: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    serving, trusting = chains
    async with receiving(tls=serving) as receiver:
        here = at(("127.0.0.1", receiver.port))
        answer = await send("https://target.example/x", resolve=here, context=trusting)
        assert answer.status == 200
        assert receiver.requests[0].headers["host"] == "target.example"
        for url, context in (("https://other.example/", trusting), ("https://target.example/", None)):
            with pytest.raises(SendFailed, match="certificate is not valid"):
                await send(url, resolve=here, context=context)
        assert len(receiver.requests) == 1


async def test_a_target_that_never_shakes_hands_is_given_up(chains: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with receiving(stall_after()) as receiver, asyncio.timeout(20):
        with pytest.raises(SendFailed, match="did not answer within"):
            await send(
                "https://target.example/", resolve=at(("127.0.0.1", receiver.port)), context=chains[1], seconds=0.5
            )


async def test_plain_http_on_a_tls_port_and_the_other_way_round_are_failures(
    chains: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with receiving(tls=chains[0]) as receiver:
        with pytest.raises(SendFailed):
            await send(receiver.url)
    async with receiving(close_after(b"plain")) as receiver:
        with pytest.raises(SendFailed):
            await send(f"https://127.0.0.1:{receiver.port}/", context=chains[1], seconds=0.5)  # it waits for more
