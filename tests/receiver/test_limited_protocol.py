"""Request heads over real sockets: every server limits their size, and a trailer is never treated as a header."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oncehook import Inbox
from oncehook.cli.serve import listen
from oncehook.config.settings import SourceSettings
from oncehook.providers import sign
from oncehook.providers.definition import built_in
from oncehook.providers.stored_headers import _cache
from oncehook.receiver.request import MAX_HEAD_BYTES, MAX_HEADERS
from oncehook.testing import DeliveryResponse
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import assert_read, connected, request, served
from tests.support.waiting import eventually, next_turn

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


PATH = "/webhooks/stripe"


BODY = stripe_body("evt_1")


COUNT = "SELECT count(*) FROM webhook_receipts"


Start = Callable[[Inbox], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def serving_mounted(inbox: Inbox, http: str) -> AsyncIterator[int]:
    """The port of uvicorn with the inbox in a FastAPI app."""
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, http=http, log_level="critical"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started, "uvicorn starts")
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


SERVERS: dict[str, Start] = {
    "serve": served,
    "serving_mounted on httptools": lambda inbox: serving_mounted(inbox, "httptools"),
    "serving_mounted on h11": lambda inbox: serving_mounted(inbox, "h11"),
}


@pytest.fixture(params=SERVERS)
async def port(request: pytest.FixtureRequest, make_inbox: Callable[..., Inbox]) -> AsyncIterator[int]:
    inbox = make_inbox(trusted_proxies=["127.0.0.1"])
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("square", secrets=["square secret of a test"])
    async with SERVERS[request.param](inbox) as port:
        yield port


@pytest.fixture
async def served_port(make_inbox: Callable[..., Inbox]) -> AsyncIterator[int]:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        yield port


def delivery_headers(count: int = 0, size: int = 0, body: bytes = BODY) -> dict[str, str]:
    """The headers of a delivery, with `count` more of them, and one of `size` bytes."""
    more = {f"X-More-{number}": "1" for number in range(count)}
    return {**stripe_headers(body), **more, **({"X-Long": "a" * size} if size else {})}


async def send_and_read(port: int, *parts: bytes) -> DeliveryResponse:
    async with connected(port) as wire:
        await wire.say(*parts)
        return await wire.answer()


async def test_a_large_head_within_the_limits_is_accepted(port: int) -> None:
    assert (await send_and_read(port, request(PATH, delivery_headers(150, 50_000), BODY))).outcome == (202, "accepted")


@pytest.mark.parametrize(("count", "size"), [(MAX_HEADERS, 0), (0, MAX_HEAD_BYTES)], ids=["count", "bytes"])
async def test_a_head_over_a_limit_gets_431_and_leaves_no_receipt(port: int, rows: Rows, count: int, size: int) -> None:
    async with connected(port) as wire:
        await wire.say(request(PATH, delivery_headers(count, size), BODY))
        answer = await wire.answer()
    assert answer.status in (431, 400)  # h11 has its own limit and answers 400
    if answer.status == 431:
        assert answer.outcome == (431, "head_too_large") and answer.headers["connection"] == "close"
    assert rows(COUNT) == [(0,)]


async def test_a_large_address_gets_431(served_port: int) -> None:
    for path in (f"{PATH}?{'a' * MAX_HEAD_BYTES}", f"/{'a' * MAX_HEAD_BYTES}"):
        assert (await send_and_read(served_port, request(path, delivery_headers(), BODY))).outcome == (
            431,
            "head_too_large",
        )


@pytest.mark.parametrize("piece", [b"a" * 8192, b"\r\nX-Y: " + b"b" * 100, b"\r\na:"], ids=["one", "many", "tiny"])
async def test_an_endless_head_is_rejected_at_the_limit(served_port: int, piece: bytes) -> None:
    async with connected(served_port) as wire:
        wire.writer.write(b"POST /webhooks/stripe HTTP/1.1\r\nHost: test\r\nX-A: ")
        sent = 0
        async with asyncio.timeout(30):
            while not wire.reader._buffer and sent < 4 * MAX_HEAD_BYTES:  # type: ignore[attr-defined]
                wire.writer.write(piece)
                sent += len(piece)
                await next_turn()
        assert (await wire.answer()).outcome == (431, "head_too_large")
    async with connected(served_port) as wire:  # other connections still work
        await wire.say(request(PATH, delivery_headers(), BODY))
        assert (await wire.answer()).outcome == (202, "accepted")


async def test_a_head_near_the_limit_gets_the_same_response_however_it_is_split(served_port: int) -> None:
    for size, status in ((MAX_HEAD_BYTES - 600, 401), (MAX_HEAD_BYTES, 431)):
        sent = request(PATH, {"Content-Length": "2", "X-Long": "a" * size}, None) + b"{}"
        for cut in (1, 30, 5_000, 60_000, len(sent) - 10):
            async with connected(served_port) as wire:
                await wire.say(sent[:cut])
                await assert_read(served_port)
                await wire.say(sent[cut:])
                assert (await wire.answer()).status == status, (size, cut)


async def test_each_pipelined_head_is_measured(served_port: int, rows: Rows) -> None:
    """A head that starts in the middle of a piece is measured without the bytes before it."""
    bodies = [stripe_body(f"evt_{number}", filler="x" * 100_000) for number in range(4)]
    sent = b"".join(request(PATH, delivery_headers(10, 30_000, body), body) for body in bodies)
    async with connected(served_port) as wire:
        await wire.say(sent)
        assert [(await wire.answer()).status for _ in bodies] == [202] * 4
        await wire.say(request(PATH, delivery_headers(0, 100, bodies[0]), bodies[0]))
        assert (await wire.answer()).status == 200
        await wire.say(request(PATH, delivery_headers(MAX_HEADERS, 0), BODY))
        assert (await wire.answer()).status == 431
        assert await wire.is_closed()
    assert rows(COUNT) == [(4,)]


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (request(PATH, {f"X-More-{number}": "1" for number in range(MAX_HEADERS)}, BODY), 431),
        (request(PATH, {"X-Long": "a" * MAX_HEAD_BYTES}, BODY), 431),
        (b"\0\r\n", 400),
        (request(PATH, {"Transfer-Encoding": "chunked"}, None) + b"zz\r\n", 400),
    ],
    ids=["many headers", "long header", "not HTTP", "broken chunk"],
)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
async def test_a_bad_pipelined_request_is_answered_after_the_request_in_front_of_it(
    make_inbox: Callable[..., Inbox], rows: Rows, second: bytes, status: int, fast: bool
) -> None:
    inbox = make_inbox(fast_paths=fast)
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port, connected(port) as wire:
        await wire.say(request(PATH, stripe_headers(BODY), BODY) + second + request("/healthz", {}, None, method="GET"))
        assert [(await wire.answer()).status, (await wire.answer()).status] == [202, status]
        assert await wire.is_closed()
    assert rows(COUNT) == [(1,)]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
async def test_nothing_is_received_after_a_response_that_closes_the_connection(
    make_inbox: Callable[..., Inbox], rows: Rows, fast: bool
) -> None:
    """The event would be recorded, and its sender would get no response."""
    inbox = make_inbox(fast_paths=fast)
    inbox.source("stripe", secrets=["whsec_test"])
    zipped = {**stripe_headers(BODY), "Content-Encoding": "gzip"}
    async with served(inbox) as port, connected(port) as wire:
        await wire.say(request(PATH, zipped, BODY) + request(PATH, stripe_headers(BODY), BODY))
        assert (await wire.answer()).outcome == (415, "unsupported_media_type")
        assert await wire.is_closed()
    assert rows(COUNT) == [(0,)]


async def test_an_upgrade_to_a_websocket_is_answered_as_a_plain_request(served_port: int, rows: Rows) -> None:
    """If a WebSocket library is installed, uvicorn would pass the connection to it, without these limits."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x" * 22 + "==",
        "Sec-WebSocket-Version": "13",
    }
    assert (await send_and_read(served_port, request("/healthz", upgrade, None, method="GET"))).status == 200
    sent = request(PATH, {**stripe_headers(BODY), **upgrade}, BODY)
    assert (await send_and_read(served_port, sent)).outcome == (400, "malformed")  # the parser reads no body of it
    assert rows(COUNT) == [(0,)]


async def test_a_broken_chunk_gets_400(served_port: int) -> None:
    headers = {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}
    for expect in ({}, {"Expect": "100-continue"}):  # in the same packet as the head, and while the body is read
        async with connected(served_port) as wire:
            await wire.say(request(PATH, {**headers, **expect}, None) + (b"" if expect else b"zz\r\n"))
            if expect:
                assert (await wire.answer()).status == 100
                await wire.say(b"zz\r\n")
            assert (await wire.answer()).status == 400
            assert await wire.is_closed()


async def test_large_header_sets_are_not_cached(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        for number in range(3):
            body = stripe_body(f"evt_{number}")
            assert (
                await send_and_read(port, request(PATH, delivery_headers(0, 3000 + number, body), body))
            ).status == 202
    assert not any(len(text) > 2048 for text in _cache.values())


async def test_long_header_names_are_not_cached(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    source = inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        for number in range(3):
            body = stripe_body(f"evt_{number}")
            headers = {
                **stripe_headers(body),
                "Content-Length": str(len(body)),
                f"X-{number}-{'n' * 60_000}": "a",
            }
            assert (await send_and_read(port, request(PATH, headers, None) + body)).status == 202
    assert source.reader.stored_names and max(map(len, source.reader.stored_names)) < 1000


async def test_a_body_of_tiny_chunks_is_passed_on_once_for_each_read(
    served_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn copies the whole body each time that a part is added."""
    added: list[int] = []
    add = HttpToolsProtocol.on_body

    def counted(self: HttpToolsProtocol, body: bytes) -> None:
        added.append(len(body))
        add(self, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", counted)
    body = stripe_body("evt_1", note="x" * 50_000)
    sent = request(PATH, {**stripe_headers(body), "Transfer-Encoding": "chunked"}, None)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert (await send_and_read(served_port, sent, chunks + b"0\r\n\r\n")).outcome == (202, "accepted")
    assert sum(added) == len(body) and len(added) < 500


def chunked(body: bytes, trailers: str) -> bytes:
    return b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers.encode())


async def test_a_signature_in_a_trailer_is_ignored(served_port: int, rows: Rows) -> None:
    signed = stripe_headers(BODY)
    trailers = "".join(f"{name}: {value}\r\n" for name, value in signed.items() if "signature" in name.lower())
    others = {name: value for name, value in signed.items() if "signature" not in name.lower()}
    for parts in (1, 2):
        sent = request(PATH, {**others, "Transfer-Encoding": "chunked"}, None)
        pieces = [sent + chunked(BODY, trailers)] if parts == 1 else [sent, chunked(BODY, trailers)]
        assert (await send_and_read(served_port, *pieces)).outcome == (401, "bad_signature")
    assert rows(COUNT) == [(0,)]


async def test_trailers_after_a_signed_delivery_are_ignored(served_port: int, rows: Rows) -> None:
    sent = request(PATH, {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}, None)
    assert (await send_and_read(served_port, sent + chunked(BODY, "X-Late: 1\r\n"))).outcome == (202, "accepted")
    ((headers,),) = rows("SELECT headers FROM webhook_payloads")
    assert "x-late" not in json.loads(headers)


async def test_announced_trailers_are_rejected_as_malformed(port: int, rows: Rows) -> None:
    headers = {**stripe_headers(BODY), "Transfer-Encoding": "chunked", "Trailer": "X-Late"}
    sent = request(PATH, headers, None) + chunked(BODY, "X-Late: 1\r\n")
    assert (await send_and_read(port, sent)).outcome == (400, "malformed")
    assert rows(COUNT) == [(0,)]


async def test_a_trailer_does_not_change_the_address_from_a_trusted_proxy(port: int, rows: Rows) -> None:
    body = b'{"event_id":"e1","type":"payment.created","merchant_id":"m"}'
    attacked = SourceSettings(public_url="https://attacker.example/webhooks/square")
    headers = {"Content-Type": "application/json"}
    signed, _ = sign.sign(
        built_in("square"), body, "square secret of a test", headers=headers, now=0.0, settings=attacked
    )
    proxied = {**signed, "X-Forwarded-Proto": "https", "X-Forwarded-Host": "hooks.good.example"}
    sent = request("/webhooks/square", {**proxied, "Transfer-Encoding": "chunked"}, None)
    answer = await send_and_read(port, sent + chunked(body, "X-Forwarded-Host: attacker.example\r\n"))
    assert answer.outcome == (401, "bad_signature")
    assert rows(COUNT) == [(0,)]


async def test_endless_trailers_close_the_connection(served_port: int) -> None:
    sent = request(PATH, {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}, None)
    async with connected(served_port) as wire:
        await wire.say(sent + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY))
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionError):
                for _ in range(2000):
                    await wire.say(b"X-T: " + b"t" * 1000 + b"\r\n")
                    await next_turn()


@pytest.mark.parametrize("path", [PATH, "/healthz", "/"])
@pytest.mark.parametrize("hosts", ["", "Host: a\r\nHost: b\r\n", "Host: a\r\nHost: a\r\n"], ids=["none", "two", "same"])
async def test_a_request_without_exactly_one_host_header_gets_400(
    served_port: int, rows: Rows, path: str, hosts: str
) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in stripe_headers(BODY).items())
    method = "POST" if path == PATH else "GET"
    body = BODY if path == PATH else b""
    head = f"{method} {path} HTTP/1.1\r\n{hosts}{signed}Content-Length: {len(body)}\r\n\r\n".encode()
    assert (await send_and_read(served_port, head + body)).outcome == (400, "malformed")
    assert rows(COUNT) == [(0,)]


async def test_http_1_0_needs_no_host(served_port: int) -> None:
    assert (await send_and_read(served_port, b"GET /healthz HTTP/1.0\r\n\r\n")).status == 200


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
async def test_a_web_page_cannot_deliver_to_an_unverified_source(
    make_inbox: Callable[..., Inbox], rows: Rows, name: str
) -> None:
    inbox = make_inbox()
    inbox.source("open", provider="stripe", verify="none")
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        answer = await send_and_read(port, request("/webhooks/open", {name: "cross-site"}, BODY))
        assert answer.outcome == (403, "foreign_origin")
        assert (await send_and_read(port, request("/webhooks/open", {}, BODY))).status == 202
        assert (await send_and_read(port, request(PATH, {**stripe_headers(BODY), name: "x"}, BODY))).status == 202
    assert rows(COUNT) == [(2,)]


async def test_a_request_with_two_lengths_gets_400(port: int, rows: Rows) -> None:
    headers = {**stripe_headers(BODY), "Transfer-Encoding": "chunked", "Content-Length": str(len(BODY))}
    assert (await send_and_read(port, request(PATH, headers, None) + chunked(BODY, ""))).status == 400
    assert rows(COUNT) == [(0,)]
