"""Requests over real sockets: bodies, lengths, timeouts, disconnects, methods and paths."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.serve import Wire, assert_read, connected, request, served
from tests.support.waiting import eventually, let_time_pass
from tests.support.wsgi import served_by_werkzeug

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


COUNT = "SELECT count(*) FROM webhook_receipts"


BODIES = "SELECT body FROM webhook_payloads ORDER BY receipt_id"


BODY = stripe_body("evt_1", filler="x" * 300)


PATH = "/webhooks/stripe"


def chunked(*parts: bytes) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part] + [b"0\r\n\r\n"]


def signed(body: bytes = BODY, **headers: str) -> dict[str, str]:
    return {**stripe_headers(body), **{name.replace("_", "-"): value for name, value in headers.items()}}


both_adapters = pytest.mark.parametrize("port", ["asgi", "wsgi"], indirect=True)


@pytest.fixture
async def port(request: pytest.FixtureRequest, make_inbox: Callable[..., Inbox]) -> AsyncIterator[int]:
    inbox = make_inbox(receive_timeout="400ms", max_body="20kB")
    inbox.source("stripe", secrets=["whsec_test"])
    if getattr(request, "param", "asgi") == "wsgi":
        with served_by_werkzeug(inbox) as port:
            yield port
        return
    async with served(inbox) as port:
        yield port


@pytest.fixture
async def wire(port: int) -> AsyncIterator[Wire]:
    async with connected(port) as wire:
        yield wire


@both_adapters
async def test_a_body_with_a_content_length_is_accepted(wire: Wire, rows: Rows) -> None:
    await wire.say(request(PATH, signed(), BODY))
    assert (await wire.answer()).outcome == (202, "accepted")
    assert rows(BODIES) == [(BODY,)]


@both_adapters
async def test_a_chunked_body_is_stored_byte_for_byte(wire: Wire, rows: Rows) -> None:
    parts = [BODY[:1], BODY[1:2], BODY[2:200], BODY[200:]]
    await wire.say(request(PATH, signed(Transfer_Encoding="chunked"), None), *chunked(*parts))
    assert (await wire.answer()).outcome == (202, "accepted")
    assert rows(BODIES) == [(BODY,)]


@pytest.mark.parametrize("parts", [1, 2, 3])
async def test_a_request_in_several_pieces_is_the_same_delivery(port: int, wire: Wire, rows: Rows, parts: int) -> None:
    sent = request(PATH, signed(), BODY)
    for number in range(2):
        size = len(sent) // parts + 1
        for start in range(0, len(sent), size):
            await wire.say(sent[start : start + size])
            await assert_read(port)
        assert (await wire.answer()).outcome == ((202, "accepted") if number == 0 else (200, "duplicate"))
    assert rows(BODIES) == [(BODY,)]


async def test_a_client_that_expects_100_continue_gets_it(wire: Wire, rows: Rows) -> None:
    head = request(PATH, signed(Expect="100-continue", Content_Length=str(len(BODY))), None)
    await wire.say(head)
    assert (await wire.answer()).status == 100
    await wire.say(BODY)
    assert (await wire.answer()).outcome == (202, "accepted")
    assert rows(BODIES) == [(BODY,)]


@pytest.mark.parametrize(
    ("path", "length", "status"), [("/webhooks/unknown", len(BODY), 404), (PATH, 20_001, 413)], ids=["unknown", "large"]
)
async def test_a_client_that_expects_100_continue_is_rejected_before_it_sends_its_body(
    wire: Wire, path: str, length: int, status: int
) -> None:
    await wire.say(request(path, signed(Expect="100-continue", Content_Length=str(length)), None))
    assert (await wire.answer()).status == status


async def test_deliveries_share_a_connection_sequentially_and_pipelined(wire: Wire, rows: Rows) -> None:
    for event_id in ("evt_1", "evt_2"):
        body = stripe_body(event_id)
        await wire.say(request(PATH, signed(body), body))
        assert (await wire.answer()).json["event_id"] == event_id
    bodies = [stripe_body(f"evt_{n}") for n in range(3, 8)]
    await wire.say(b"".join(request(PATH, signed(body), body) for body in bodies))
    assert [(await wire.answer()).json["event_id"] for _ in bodies] == [f"evt_{n}" for n in range(3, 8)]
    assert rows(COUNT) == [(7,)]


@both_adapters
@pytest.mark.parametrize("missing", [1, 100, len(BODY)])
async def test_a_body_shorter_than_its_length_leaves_no_receipt(port: int, rows: Rows, missing: int) -> None:
    async with connected(port) as wire:
        await wire.say(request(PATH, signed(Content_Length=str(len(BODY))), None), BODY[:-missing])
        wire.writer.write_eof()
        async with asyncio.timeout(30):
            answer = await wire.reader.read()
        assert answer == b"" or b" 400 " in answer.splitlines()[0]  # WSGI always answers
    async with connected(port) as wire:  # when this has its response, the first one was handled
        await wire.say(request(PATH, signed(), BODY))
        assert (await wire.answer()).outcome == (202, "accepted")
    assert rows(COUNT) == [(1,)]


async def test_a_body_longer_than_its_length_leaves_no_receipt(wire: Wire, rows: Rows) -> None:
    await wire.say(request(PATH, signed(Content_Length=str(len(BODY) - 10)), None), BODY)
    try:
        assert (await wire.answer()).status in (
            400,
            401,
        )  # the rest is not a request, which the server may answer first
    except asyncio.IncompleteReadError:  # or it closes the connection before the response
        pass
    assert rows(COUNT) == [(0,)]


@pytest.mark.parametrize(
    "headers",
    [
        {"Transfer-Encoding": "chunked", "Content-Length": "5"},
        {"Content-Length": "5", "Transfer-Encoding": "chunked"},
        {"Transfer-Encoding": "identity, chunked", "Content-Length": "5"},
        {"Content-Length": "5", "content-length": "6"},
        {"Content-Length": "-1"},
        {"Content-Length": "5_0"},
        {"Transfer-Encoding": "gzip"},
    ],
    ids=str,
)
async def test_a_request_with_contradictory_lengths_gets_400_and_leaves_no_receipt(
    port: int, rows: Rows, headers: dict[str, str]
) -> None:
    async with connected(port) as wire:
        await wire.say(request(PATH, {**signed(), **headers}, None), *chunked(BODY))
        assert (await wire.answer()).status == 400
        assert await wire.is_closed()
    assert rows(COUNT) == [(0,)]


@both_adapters
async def test_an_incomplete_chunked_body_leaves_no_receipt(port: int, rows: Rows) -> None:
    async with connected(port) as wire:
        await wire.say(request(PATH, signed(Transfer_Encoding="chunked"), None), *chunked(BODY)[:-1])
        wire.leave()
    async with connected(port) as wire:
        await wire.say(request(PATH, signed(), BODY))
        assert (await wire.answer()).outcome == (202, "accepted")
    assert rows(COUNT) == [(1,)]


@both_adapters
async def test_a_body_that_stops_half_way_times_out_and_leaves_no_receipt(wire: Wire, rows: Rows) -> None:
    await wire.say(request(PATH, signed(Content_Length=str(len(BODY))), None), BODY[:-1])
    answer = await wire.answer()
    assert answer.outcome == (408, "timeout")
    assert answer.headers["connection"] == "close"
    assert await wire.is_closed()
    assert rows(COUNT) == [(0,)]


@both_adapters
async def test_a_body_that_arrives_byte_by_byte_times_out(wire: Wire, rows: Rows) -> None:
    await wire.say(request(PATH, signed(Content_Length=str(len(BODY))), None))

    async def drip() -> None:
        for byte in BODY:
            await wire.say(bytes([byte]))
            await let_time_pass(0.02)

    dripping = asyncio.create_task(drip())
    assert (await wire.answer()).outcome == (408, "timeout")
    dripping.cancel()
    await asyncio.wait([dripping])
    assert rows(COUNT) == [(0,)]


@both_adapters
async def test_a_slow_sender_does_not_delay_other_senders(port: int, rows: Rows) -> None:
    async with connected(port) as slow, connected(port) as quick:
        await slow.say(request(PATH, signed(Content_Length=str(len(BODY))), None), BODY[:10])
        await quick.say(request(PATH, signed(), BODY))
        assert (await quick.answer()).outcome == (202, "accepted")
        assert (await slow.answer()).outcome == (408, "timeout")
    async with connected(port) as quick:
        await quick.say(request(PATH, signed(), BODY))
        assert (await quick.answer()).outcome == (200, "duplicate")
    assert rows(COUNT) == [(1,)]


@both_adapters
async def test_a_content_length_over_the_limit_is_rejected_before_the_body(wire: Wire) -> None:
    await wire.say(request(PATH, signed(Content_Length="20001"), None))
    assert (await wire.answer()).outcome == (413, "too_large")
    assert await wire.is_closed()


@both_adapters
async def test_a_chunked_body_is_rejected_at_the_limit_while_it_streams(wire: Wire, rows: Rows) -> None:
    await wire.say(request(PATH, signed(Transfer_Encoding="chunked"), None))
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    await wire.say(*[piece] * 6)  # the body does not end
    assert (await wire.answer()).outcome == (413, "too_large")
    assert await wire.is_closed()
    assert rows(COUNT) == [(0,)]


async def test_the_body_of_a_rejected_request_is_never_read_as_a_request(port: int, rows: Rows) -> None:
    smuggled = request(PATH, signed(), BODY)
    for rejected in (
        request(PATH, signed(Content_Length=str(20_001 + len(smuggled))), None),
        request(PATH, signed(Content_Type="multipart/form-data", Content_Length=str(len(smuggled))), None),
        request(PATH, {"Content-Length": str(len(smuggled))}, None, method="PUT"),
    ):
        async with connected(port) as wire:
            await wire.say(rejected + smuggled)
            assert (await wire.answer()).status in (405, 413, 415)
            assert await wire.is_closed()
    assert rows(COUNT) == [(0,)]


async def test_a_client_that_disconnects_before_the_commit_does_not_affect_others_in_it(port: int, rows: Rows) -> None:
    async with connected(port) as staying:
        for number in range(20):
            async with connected(port) as leaving:
                body = stripe_body(f"evt_leaves_{number}")
                await leaving.say(request(PATH, signed(body), body))
                leaving.leave()
            body = stripe_body(f"evt_stays_{number}")
            await staying.say(request(PATH, signed(body), body))
            assert (await staying.answer()).outcome == (202, "accepted")
    assert rows("SELECT count(*) FROM webhook_receipts WHERE event_id LIKE 'evt_stays%'") == [(20,)]


@both_adapters
async def test_a_client_that_disconnects_after_its_body_has_its_event_recorded(port: int, rows: Rows) -> None:
    for number in range(10):
        body = stripe_body(f"evt_{number}")
        async with connected(port) as wire:
            await wire.say(request(PATH, signed(body), body))
            wire.leave()
    await eventually(lambda: rows(COUNT) == [(10,)], "all ten events are recorded")


@both_adapters
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_only_post_delivers(wire: Wire, method: str) -> None:
    await wire.say(request(PATH, {}, b"", method=method))
    answer = await wire.answer()
    assert answer.outcome == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@both_adapters
async def test_a_trailing_slash_is_accepted_without_a_redirect(port: int, rows: Rows) -> None:
    for path, status in ((PATH + "/", 202), (PATH + "?a=b", 200)):
        async with connected(port) as wire:
            await wire.say(request(path, signed(), BODY))
            assert (await wire.answer()).status == status
    assert rows("SELECT source FROM webhook_receipts") == [("stripe",)]


@pytest.mark.parametrize("path", ["/webhooks/", "/webhooks/unknown", "/webhooks/stripe/more", "/stripe", "/webhooks"])
async def test_an_unknown_address_gets_404(wire: Wire, path: str) -> None:
    await wire.say(request(path, signed(), BODY))
    assert (await wire.answer()).outcome == (404, "unknown_source")


async def test_the_probes_answer_alive_and_ready(wire: Wire) -> None:
    for path, text in (("/healthz", b"alive\n"), ("/readyz", b"ready\n")):
        await wire.say(request(path, {}, None, method="GET"))
        answer = await wire.answer()
        assert (answer.status, answer.body) == (200, text)
    await wire.say(request("/", {}, None, method="GET"))
    page = await wire.answer()
    assert page.status == 200 and b"Oncehook" in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_a_response_to_head_has_no_body_and_does_not_delay_the_next_request(wire: Wire) -> None:
    for method, text in (("HEAD", b""), ("HEAD", b""), ("GET", b"alive\n")):
        await wire.say(request("/healthz", {}, None, method=method))
        async with asyncio.timeout(30):
            head = await wire.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"content-length: 6" in head
            assert await wire.reader.readexactly(len(text)) == text


@pytest.mark.parametrize("signature", ["right", "wrong"])
async def test_a_response_is_written_in_one_piece(port: int, rows: Rows, signature: str) -> None:
    reads = []
    async with connected(port) as wire:
        for number in range(50):
            body = stripe_body(f"evt_whole_{number}")
            await wire.say(request(PATH, signed(body if signature == "right" else b"another"), body))
            async with asyncio.timeout(30):
                reads.append(await wire.reader.read(65536))
                while not reads[-1].endswith(b"}"):
                    reads.append(await wire.reader.read(65536))
    assert len(reads) == 50


@pytest.mark.parametrize("reason", ["HTTP/1.0", "connection: close"])
async def test_a_client_without_keep_alive_gets_connection_close(wire: Wire, rows: Rows, reason: str) -> None:
    sent = request(PATH, signed(Connection="close") if reason == "connection: close" else signed(), BODY)
    await wire.say(sent.replace(b"HTTP/1.1", b"HTTP/1.0") if reason == "HTTP/1.0" else sent)
    answer = await wire.answer()
    assert answer.outcome == (202, "accepted") and answer.headers["connection"] == "close"
    assert await wire.is_closed() and rows(BODIES) == [(BODY,)]


@pytest.mark.parametrize("bytes_", [b"\x16\x03\x01 hello", b"POST\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"], ids=repr)
async def test_bytes_that_are_not_http_get_400_and_the_connection_closes(wire: Wire, bytes_: bytes) -> None:
    await wire.say(bytes_ + b"\r\n\r\n")
    assert (await wire.answer()).status == 400
    assert await wire.is_closed()
