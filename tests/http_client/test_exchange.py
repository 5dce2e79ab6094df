"""Reading responses: framings, limits, and targets that stall, close early or send too much."""

import asyncio

import pytest

from oncehook.http_client.client import MAX_RESPONSE_BODY
from oncehook.http_client.exchange import Connection, Exchange
from oncehook.model.errors import SendFailed
from tests.support.http_client import BODY, open_client, post
from tests.support.http_target import (
    Answering,
    Request,
    close_after,
    drip_after,
    endless,
    http_response,
    receiving,
    stall_after,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


ANSWERS: dict[str, tuple[Answering, int, bytes]] = {
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "an error": (http_response(500, body=b"oops"), 500, b"oops"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde"),
    "until it closes": (close_after(b"HTTP/1.0 200 OK\r\n\r\nabcde"), 200, b"abcde"),
    "after a 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + http_response(202, body=b"x"), 202, b"x"),
    "after a 103": (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + http_response(202, body=b"x"), 202, b"x"),
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_response_is_read_in_every_framing_of_http(how: str) -> None:
    answer, status, body = ANSWERS[how]
    async with receiving(answer) as receiver:
        got = await post(receiver.url)
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
async def test_incomplete_or_malformed_response_is_a_failure_within_the_time_limit(fault: str) -> None:
    behavior, sentence = FAULTS[fault]
    async with receiving(behavior) as receiver, asyncio.timeout(20):
        with pytest.raises(SendFailed, match=sentence) as caught:
            await post(receiver.url, seconds=0.5)
        assert receiver.connections == 1
        assert str(caught.value).startswith(f"http://127.0.0.1:{receiver.port} ")
        assert "hidden" not in str(caught.value) and "hooks" not in str(caught.value)


async def test_endless_trailers_are_not_read() -> None:
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
            await post(receiver.url, seconds=20)
        await eventually(lambda: not receiver.under_way, "the target stops sending trailers")
    assert sent < 20 * 2**20, "as much as fits into the buffers of two sockets"


async def test_trailers_do_not_become_headers() -> None:
    async with receiving(CHUNKED + b"Retry-After: 5\r\nX-Trailer: a\r\n\r\n") as receiver:
        answer = await post(receiver.url)
        assert (answer.body, answer.whole, answer.headers) == (b"a", True, {"transfer-encoding": "chunked"})


async def test_body_in_chunks_of_one_byte_is_read_completely() -> None:
    chunks = b"1\r\na\r\n" * MAX_RESPONSE_BODY + b"0\r\n\r\n"
    async with receiving(CHUNKED.partition(b"1\r\n")[0] + chunks) as receiver:
        answer = await post(receiver.url)
        assert (len(answer.body), answer.whole) == (MAX_RESPONSE_BODY, True)


@pytest.mark.parametrize(
    "behavior", [endless, http_response(200, body=b"x" * (MAX_RESPONSE_BODY + 1))], ids=["endless", "a byte more"]
)
async def test_response_body_is_cut_at_the_limit_and_its_status_counts(behavior: Answering) -> None:
    async with receiving(behavior) as receiver, asyncio.timeout(20):
        answer = await post(receiver.url)
        assert (answer.status, len(answer.body), answer.whole) == (200, MAX_RESPONSE_BODY, False)


async def test_response_counts_even_if_the_target_did_not_read_the_request_body() -> None:
    """A target may reject a large body by its headers alone."""

    gone = asyncio.Event()

    async def reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http_response(413))
        await writer.drain()
        await gone.wait()
        writer.transport.abort()

    server = await asyncio.start_server(reject, "127.0.0.1", 0, limit=1024)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        assert (await post(f"http://127.0.0.1:{port}/", body=b"x" * 8_000_000)).status == 413
        gone.set()


async def test_surplus_response_is_never_taken_for_the_response_to_the_next_request() -> None:
    more = http_response(200, "X-Y: smuggled", body=b"smuggled")
    for extra in (more, more[:20], more[:-3]):
        async with receiving(http_response(500) + extra, http_response(404)) as receiver, open_client() as http:
            first = await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
            assert (first.status, first.body, "x-y" in first.headers) == (500, b"", False)
            assert (await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 404
            assert receiver.connections == 2


async def test_connection_without_a_transport_cannot_send() -> None:
    connection = Connection()
    connection.close()
    with pytest.raises(SendFailed, match="http://x closed the connection without a response"):
        await connection.request(b"", "http://x", 1)


async def test_bytes_after_a_failed_response_are_ignored() -> None:
    exchange = Exchange("http://x", 10)
    exchange.feed(b"SSH-2.0-x\r\n")
    exchange.feed(b"HTTP/1.1 200 OK\r\n\r\n")
    exchange.end()
    with pytest.raises(SendFailed, match=r"http://x sent a response that is not HTTP/1\.1"):
        await exchange.response
