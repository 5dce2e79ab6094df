"""The HTTP client: which addresses it calls, what it sends, how it reuses connections, and TLS."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from oncehook.http_client import client
from oncehook.http_client.client import Address, parse_url
from oncehook.model.errors import SendFailed, SendRefused
from tests.http_client.test_public_networks import BLOCKED
from tests.support.http_client import BODY, open_client, post, resolve_to
from tests.support.http_target import close_after, http_response, receiving, stall_after
from tests.support.servers import free_port
from tests.support.tls_server import Canary, issue, pem
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


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
def test_address_is_split_into_origin_and_path(text: str, origin: str, path: str) -> None:
    assert (parse_url(text).origin, parse_url(text).path) == (origin, path)


MALFORMED = [
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


@pytest.mark.parametrize("text", MALFORMED)
async def test_malformed_address_is_rejected_before_any_lookup(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        parse_url(text)
    with pytest.raises(SendRefused, match="not usable"):
        await post(text)


# -- who may be called ----------------------------------------------------------------------------------------------

SPELLINGS = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0177.1", "localhost"),
    *("LOCALHOST", "localhost.", "0", "0.0.0.0", "0x0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[::127.0.0.1]", "[0:0:0:0:0:ffff:7f00:0001]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1."),
]


@pytest.mark.parametrize("host", SPELLINGS)
async def test_client_does_not_call_this_machine_in_any_spelling_of_its_address(host: str) -> None:
    with Canary() as canary, pytest.raises(SendFailed) as caught:
        await post(f"http://{host}:{canary.port}/", trusted=False)
    assert canary.connections == 0
    assert isinstance(caught.value, SendRefused) or "cannot be resolved" in str(caught.value)


@pytest.mark.parametrize("address", [address for address in BLOCKED if address[:1].isdigit() or ":" in address])
async def test_client_does_not_call_a_name_with_a_private_address(address: str) -> None:
    with Canary() as canary, pytest.raises(SendRefused, match="configuration"):
        await post(
            f"http://innocent.example:{canary.port}/",
            trusted=False,
            resolve=resolve_to((address.partition("%")[0], canary.port)),
        )
    assert canary.connections == 0


@pytest.mark.parametrize("order", [1, -1])
async def test_client_does_not_call_a_name_if_one_of_its_addresses_is_private(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test can only listen on loopback, so one loopback address counts as public here.
    monkeypatch.setattr(client, "blocked_reason", lambda address: None if address == "127.0.0.2" else "loopback")
    with Canary() as canary, pytest.raises(SendRefused, match=r"127\.0\.0\.1, which is loopback"):
        answers = [("127.0.0.2", canary.port), ("127.0.0.1", canary.port)][::order]
        await post(f"http://innocent.example:{canary.port}/", trusted=False, resolve=resolve_to(*answers))
    assert canary.connections == 0


async def test_client_connects_to_the_address_that_it_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server may return a public address to the check and a private one to the connection: it is asked once."""
    # A test can only listen on loopback, so one loopback address counts as public here.
    monkeypatch.setattr(client, "blocked_reason", lambda address: None if address == "127.0.0.2" else "loopback")
    lookups = 0

    async def flipping(host: str, port: int) -> list[Address]:
        nonlocal lookups
        lookups += 1
        return [(socket.AF_INET, ("127.0.0.2" if lookups == 1 else "127.0.0.1", port))]

    with Canary() as canary:
        async with receiving(host="127.0.0.2", port=canary.port) as receiver, open_client(resolve=flipping) as http:
            url = f"http://rebinding.example:{canary.port}/"
            assert (await http.send(url, BODY, {}, trusted=False, timeout=5)).status == 200
            assert (lookups, receiver.connections) == (1, 1)
            await http.close()
            with pytest.raises(SendRefused):
                await http.send(url, BODY, {}, trusted=False, timeout=5)
            assert (lookups, receiver.connections) == (2, 1)
    assert canary.connections == 0


async def test_client_sends_nothing_if_the_connected_peer_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client also checks the peer of the connected socket before it sends a byte."""
    seen: list[str] = []

    def reason(address: str) -> str | None:
        seen.append(address)
        return None if len(seen) < 2 else "not public"

    # A peer other than the checked address needs a changed route, which a test cannot make.
    monkeypatch.setattr(client, "blocked_reason", reason)
    async with receiving() as receiver:
        with pytest.raises(SendRefused):
            await post(receiver.url, trusted=False)
        assert seen == ["127.0.0.1", "127.0.0.1"] and receiver.requests == []


async def test_name_that_cannot_be_resolved_is_a_failure() -> None:
    async def broken(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    for trusted in (True, False):
        with pytest.raises(SendFailed, match=r"name\.example cannot be resolved"):
            await post("http://name.example/", trusted=trusted, resolve=broken)
        with pytest.raises(SendFailed, match="has no address"):
            await post("http://name.example/", trusted=trusted, resolve=resolve_to())


async def test_connection_of_a_trusted_target_is_not_reused_for_an_untrusted_one() -> None:
    async with receiving() as receiver, open_client() as http:
        assert (await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 200
        with pytest.raises(SendRefused):
            await http.send(receiver.url, BODY, {}, trusted=False, timeout=5)
        assert len(receiver.requests) == 1


# -- what is sent ---------------------------------------------------------------------------------------------------


async def test_request_has_the_given_headers_and_body_and_no_others() -> None:
    async with receiving(http_response(201, "X-Y: z", body=b"done")) as receiver:
        answer = await post(receiver.url, headers={"Content-Type": "text/x", "X-A": "b\xe9"})
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
async def test_header_that_is_not_one_line_or_is_reserved_is_rejected(name: str, value: str) -> None:
    async with receiving() as receiver:
        with pytest.raises(SendRefused, match="cannot be sent"):
            await post(receiver.url, headers={name: value})
        assert receiver.connections == 0


async def test_client_ignores_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Canary() as canary:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
        async with receiving() as receiver:
            assert (await post(receiver.url)).status == 200
    assert canary.connections == 0


# -- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_client_returns_a_redirect_and_does_not_follow_it(status: int) -> None:
    with Canary() as canary:
        async with receiving(http_response(status, f"Location: http://127.0.0.1:{canary.port}/")) as receiver:
            assert (await post(receiver.url)).status == status
            assert receiver.connections == 1
    assert canary.connections == 0


async def test_target_that_does_not_listen_is_a_failure() -> None:
    with pytest.raises(SendFailed, match="cannot be reached"):
        await post(f"http://127.0.0.1:{free_port()}/")


async def test_client_tries_the_next_address_if_the_first_does_not_connect() -> None:
    async with receiving() as receiver:
        addresses = resolve_to(("127.0.0.1", free_port()), ("127.0.0.1", receiver.port))
        assert (await post("http://two.example/", resolve=addresses)).status == 200


@pytest.mark.parametrize(("unreachable", "outcome"), [(3, "200"), (4, "cannot be reached")])
async def test_client_tries_the_first_four_addresses_of_a_name(unreachable: int, outcome: str) -> None:
    async with receiving() as receiver:
        closed = [("127.0.0.1", free_port()) for _ in range(unreachable)]
        try:
            response = await post("http://many.example/", resolve=resolve_to(*closed, ("127.0.0.1", receiver.port)))
            found = str(response.status)
        except SendFailed as error:
            found = str(error)
        assert outcome in found


async def test_client_gives_up_connecting_after_the_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(full.getsockname())
        try:
            with pytest.raises(SendFailed, match=r"0\.3 s to connect"):
                await post("http://full.example/", resolve=resolve_to(full.getsockname()))
        finally:
            for connection in waiting:
                connection.close()


# -- connections that are used again --------------------------------------------------------------------------------


async def test_client_reuses_a_connection_that_the_target_keeps_open() -> None:
    async with receiving(
        http_response(200), http_response(500, body=b"x"), http_response(200, "Connection: close"), http_response(200)
    ) as receiver:
        async with open_client() as http:
            for _ in range(4):
                await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        assert (receiver.connections, len(receiver.requests)) == (2, 4)


async def test_request_is_sent_again_if_the_target_closed_the_idle_connection() -> None:
    """Also when the close and the next request cross each other."""

    async def answer_then_close(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(200))
        await writer.drain()
        writer.close()

    async with receiving(answer_then_close) as receiver, open_client() as http:
        for _ in range(20):
            assert (await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 200


async def test_client_closes_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.05)
    async with receiving() as receiver, open_client() as http:
        await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        (idle,) = http._idle[f"http://127.0.0.1:{receiver.port}", True]
        await eventually(lambda: not idle.is_open, "the client closes its idle connection")


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


async def test_tls_certificate_is_verified_against_the_name(
    chains: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    serving, trusting = chains
    async with receiving(tls=serving) as receiver:
        here = resolve_to(("127.0.0.1", receiver.port))
        answer = await post("https://target.example/x", resolve=here, context=trusting)
        assert answer.status == 200
        assert receiver.requests[0].headers["host"] == "target.example"
        for url, context in (("https://other.example/", trusting), ("https://target.example/", None)):
            with pytest.raises(SendFailed, match="certificate is not valid"):
                await post(url, resolve=here, context=context)
        assert len(receiver.requests) == 1


async def test_client_gives_up_a_tls_handshake_after_the_time_limit(
    chains: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with receiving(stall_after()) as receiver, asyncio.timeout(20):
        with pytest.raises(SendFailed, match="did not answer within"):
            await post(
                "https://target.example/",
                resolve=resolve_to(("127.0.0.1", receiver.port)),
                context=chains[1],
                seconds=0.5,
            )


async def test_mixing_tls_and_plain_http_is_a_failure(
    chains: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with receiving(tls=chains[0]) as receiver:
        with pytest.raises(SendFailed):
            await post(receiver.url)
    async with receiving(close_after(b"plain")) as receiver:
        with pytest.raises(SendFailed):
            await post(
                f"https://127.0.0.1:{receiver.port}/", context=chains[1], seconds=0.5
            )  # the target waits for more bytes


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (OSError(111, "Connection refused", "/a/secret/path"), "Connection refused"),
        (OSError("https://user:secret@host"), "OSError"),
        (ssl.SSLError("https://user:secret@host"), "TLS failed (SSLError)"),
        (TimeoutError("https://user:secret@host"), "it took longer than 5 s to connect"),
    ],
)
def test_summary_of_a_system_error_never_quotes_an_address(error: OSError, summary: str) -> None:
    assert client._error_summary(error) == summary
