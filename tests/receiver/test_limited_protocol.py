"""Request heads over real sockets: their size is limited on every server, and a trailer is never a header."""

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
from tests.support.serve import connected, request, served

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]

DOOR = "/webhooks/stripe"
BODY = stripe_body("evt_1")
COUNT = "SELECT count(*) FROM webhook_receipts"
Start = Callable[[Inbox], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def mounted(inbox: Inbox, http: str) -> AsyncIterator[int]:
    """The port of uvicorn with the inbox in a FastAPI app."""
    app = FastAPI(lifespan=inbox.lifespan)
    app.mount("/webhooks", inbox)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, http=http, log_level="critical"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


SERVERS: dict[str, Start] = {
    "serve": served,
    "mounted on httptools": lambda inbox: mounted(inbox, "httptools"),
    "mounted on h11": lambda inbox: mounted(inbox, "h11"),
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


def head(count: int = 0, size: int = 0, body: bytes = BODY) -> dict[str, str]:
    """The headers of a delivery, with `count` more of them, and one of `size` bytes."""
    more = {f"X-More-{number}": "1" for number in range(count)}
    return {**stripe_headers(body), **more, **({"X-Long": "a" * size} if size else {})}


async def tell(port: int, *parts: bytes) -> DeliveryResponse:
    async with connected(port) as wire:
        await wire.say(*parts)
        return await wire.answer()


# -- size -----------------------------------------------------------------------------------------------------------


async def test_large_head_within_the_limits_is_taken(port: int) -> None:
    assert (await tell(port, request(DOOR, head(150, 50_000), BODY))).outcome == (202, "accepted")


@pytest.mark.parametrize(("count", "size"), [(MAX_HEADERS, 0), (0, MAX_HEAD_BYTES)], ids=["count", "bytes"])
async def test_head_over_a_limit_is_431_and_leaves_nothing(port: int, rows: Rows, count: int, size: int) -> None:
    async with connected(port) as wire:
        await wire.say(request(DOOR, head(count, size), BODY))
        answer = await wire.answer()
    assert answer.status in (431, 400)  # h11 has its own limit of bytes, and says 400
    if answer.status == 431:
        assert answer.outcome == (431, "head_too_large") and answer.headers["connection"] == "close"
    assert rows(COUNT) == [(0,)]


async def test_large_address_is_431(served_port: int) -> None:
    for path in (f"{DOOR}?{'a' * MAX_HEAD_BYTES}", f"/{'a' * MAX_HEAD_BYTES}"):
        assert (await tell(served_port, request(path, head(), BODY))).outcome == (431, "head_too_large")


@pytest.mark.parametrize("piece", [b"a" * 8192, b"\r\nX-Y: " + b"b" * 100, b"\r\na:"], ids=["one", "many", "tiny"])
async def test_endless_head_is_cut_off_after_the_limit(served_port: int, piece: bytes) -> None:
    async with connected(served_port) as wire:
        wire.writer.write(b"POST /webhooks/stripe HTTP/1.1\r\nHost: test\r\nX-A: ")
        sent = 0
        async with asyncio.timeout(10):
            while not wire.reader._buffer and sent < 4 * MAX_HEAD_BYTES:  # type: ignore[attr-defined]
                wire.writer.write(piece)
                sent += len(piece)
                await asyncio.sleep(0)
        assert (await wire.answer()).outcome == (431, "head_too_large")
    async with connected(served_port) as wire:  # others are served
        await wire.say(request(DOOR, head(), BODY))
        assert (await wire.answer()).outcome == (202, "accepted")


async def test_every_cut_of_a_head_near_the_limit_is_judged_the_same(served_port: int) -> None:
    for size, status in ((MAX_HEAD_BYTES - 600, 401), (MAX_HEAD_BYTES, 431)):
        said = request(DOOR, {"Content-Length": "2", "X-Long": "a" * size}, None) + b"{}"
        for cut in (1, 30, 5_000, 60_000, len(said) - 10):
            async with connected(served_port) as wire:
                await wire.say(said[:cut])
                await asyncio.sleep(0.02)  # so that it is read by itself
                await wire.say(said[cut:])
                assert (await wire.answer()).status == status, (size, cut)


async def test_pipelined_heads_are_each_measured(served_port: int, rows: Rows) -> None:
    """A head that begins in the middle of a piece is measured, and what is before it does not count."""
    bodies = [stripe_body(f"evt_{number}", filler="x" * 100_000) for number in range(4)]
    said = b"".join(request(DOOR, head(10, 30_000, body), body) for body in bodies)
    async with connected(served_port) as wire:
        await wire.say(said)
        assert [(await wire.answer()).status for _ in bodies] == [202] * 4
        await wire.say(request(DOOR, head(0, 100, bodies[0]), bodies[0]))
        assert (await wire.answer()).status == 200
        await wire.say(request(DOOR, head(MAX_HEADERS, 0), BODY))
        assert (await wire.answer()).status == 431
        assert await wire.is_closed()
    assert rows(COUNT) == [(4,)]


@pytest.mark.parametrize("second", ["large head", "no HTTP"])
async def test_bad_request_behind_an_unanswered_one_is_not_taken_for_its_answer(
    make_inbox: Callable[..., Inbox], second: str
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port, connected(port) as wire:
        first = request(DOOR, {**stripe_headers(BODY), "Content-Length": str(len(BODY))}, None) + BODY
        await wire.say(first + (b"\0\r\n" if second == "no HTTP" else request(DOOR, head(MAX_HEADERS), BODY)))
        answer = await asyncio.wait_for(wire.reader.read(), 5)
    assert b" 431 " not in answer and b" 400 " not in answer


async def test_broken_chunk_is_answered_with_400(served_port: int) -> None:
    given = {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}
    for expect in ({}, {"Expect": "100-continue"}):  # with its head, and while its body is being read
        async with connected(served_port) as wire:
            await wire.say(request(DOOR, {**given, **expect}, None) + (b"" if expect else b"zz\r\n"))
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
            assert (await tell(port, request(DOOR, head(0, 3000 + number, body), body))).status == 202
    assert not any(len(text) > 2048 for text in _cache.values())


async def test_long_header_names_are_not_cached(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    source = inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        for number in range(3):
            body = stripe_body(f"evt_{number}")
            head = {**stripe_headers(body), "Content-Length": str(len(body)), f"X-{number}-{'n' * 60_000}": "a"}
            assert (await tell(port, request(DOOR, head, None) + body)).status == 202
    assert source.reader.stored_names and max(map(len, source.reader.stored_names)) < 1000


# -- tiny chunks ----------------------------------------------------------------------------------------------------


async def test_body_of_tiny_chunks_is_put_together_once_for_each_read(
    served_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn copies all that it has of a body for each part that is added to it."""
    added: list[int] = []
    add = HttpToolsProtocol.on_body

    def counted(self: HttpToolsProtocol, body: bytes) -> None:
        added.append(len(body))
        add(self, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", counted)
    body = stripe_body("evt_1", note="x" * 50_000)
    said = request(DOOR, {**stripe_headers(body), "Transfer-Encoding": "chunked"}, None)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert (await tell(served_port, said, chunks + b"0\r\n\r\n")).outcome == (202, "accepted")
    assert sum(added) == len(body) and len(added) < 500


# -- trailers -------------------------------------------------------------------------------------------------------


def chunked(body: bytes, trailers: str) -> bytes:
    return b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers.encode())


async def test_signature_in_a_trailer_does_not_count(served_port: int, rows: Rows) -> None:
    signed = stripe_headers(BODY)
    trailers = "".join(f"{name}: {value}\r\n" for name, value in signed.items() if "signature" in name.lower())
    others = {name: value for name, value in signed.items() if "signature" not in name.lower()}
    for parts in (1, 2):
        said = request(DOOR, {**others, "Transfer-Encoding": "chunked"}, None)
        pieces = [said + chunked(BODY, trailers)] if parts == 1 else [said, chunked(BODY, trailers)]
        assert (await tell(served_port, *pieces)).outcome == (401, "bad_signature")
    assert rows(COUNT) == [(0,)]


async def test_trailers_after_a_signed_delivery_are_ignored(served_port: int, rows: Rows) -> None:
    said = request(DOOR, {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}, None)
    assert (await tell(served_port, said + chunked(BODY, "X-Late: 1\r\n"))).outcome == (202, "accepted")
    ((kept,),) = rows("SELECT headers FROM webhook_payloads")
    assert "x-late" not in json.loads(kept)


async def test_announced_trailers_are_malformed(port: int, rows: Rows) -> None:
    headers = {**stripe_headers(BODY), "Transfer-Encoding": "chunked", "Trailer": "X-Late"}
    said = request(DOOR, headers, None) + chunked(BODY, "X-Late: 1\r\n")
    assert (await tell(port, said)).outcome == (400, "malformed")
    assert rows(COUNT) == [(0,)]


async def test_trailer_does_not_change_the_address_that_a_proxy_named(port: int, rows: Rows) -> None:
    body = b'{"event_id":"e1","type":"payment.created","merchant_id":"m"}'
    attacked = SourceSettings(public_url="https://attacker.example/webhooks/square")
    headers = {"Content-Type": "application/json"}
    signed, _ = sign.sign(
        built_in("square"), body, "square secret of a test", headers=headers, now=0.0, settings=attacked
    )
    proxied = {**signed, "X-Forwarded-Proto": "https", "X-Forwarded-Host": "hooks.good.example"}
    said = request("/webhooks/square", {**proxied, "Transfer-Encoding": "chunked"}, None)
    answer = await tell(port, said + chunked(body, "X-Forwarded-Host: attacker.example\r\n"))
    assert answer.outcome == (401, "bad_signature")
    assert rows(COUNT) == [(0,)]


async def test_endless_trailers_are_cut_off(served_port: int) -> None:
    said = request(DOOR, {**stripe_headers(BODY), "Transfer-Encoding": "chunked"}, None)
    async with connected(served_port) as wire:
        await wire.say(said + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY))
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                for _ in range(2000):
                    await wire.say(b"X-T: " + b"t" * 1000 + b"\r\n")
                    await asyncio.sleep(0)


# -- hosts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [DOOR, "/healthz", "/"])
@pytest.mark.parametrize("hosts", ["", "Host: a\r\nHost: b\r\n", "Host: a\r\nHost: a\r\n"], ids=["none", "two", "same"])
async def test_request_without_exactly_one_host_is_400(served_port: int, rows: Rows, path: str, hosts: str) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in stripe_headers(BODY).items())
    method = "POST" if path == DOOR else "GET"
    body = BODY if path == DOOR else b""
    head = f"{method} {path} HTTP/1.1\r\n{hosts}{signed}Content-Length: {len(body)}\r\n\r\n".encode()
    assert (await tell(served_port, head + body)).outcome == (400, "malformed")
    assert rows(COUNT) == [(0,)]


async def test_http_1_0_needs_no_host(served_port: int) -> None:
    assert (await tell(served_port, b"GET /healthz HTTP/1.0\r\n\r\n")).status == 200


# -- pages of other sites -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
async def test_web_page_cannot_deliver_to_a_source_that_verifies_nothing(
    make_inbox: Callable[..., Inbox], rows: Rows, name: str
) -> None:
    inbox = make_inbox()
    inbox.source("open", provider="stripe", verify="none")
    inbox.source("stripe", secrets=["whsec_test"])
    async with served(inbox) as port:
        answer = await tell(port, request("/webhooks/open", {name: "cross-site"}, BODY))
        assert answer.outcome == (403, "foreign_origin")
        assert (await tell(port, request("/webhooks/open", {}, BODY))).status == 202
        assert (await tell(port, request(DOOR, {**stripe_headers(BODY), name: "x"}, BODY))).status == 202
    assert rows(COUNT) == [(2,)]


# -- two lengths ----------------------------------------------------------------------------------------------------


async def test_two_lengths_that_agree_are_400(port: int, rows: Rows) -> None:
    headers = {**stripe_headers(BODY), "Transfer-Encoding": "chunked", "Content-Length": str(len(BODY))}
    assert (await tell(port, request(DOOR, headers, None) + chunked(BODY, ""))).status == 400
    assert rows(COUNT) == [(0,)]
