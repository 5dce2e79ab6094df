"""Requests from threads to the event loop: bodies, back-pressure, a blocked loop, a stop, and another event loop."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from oncehook import Inbox
from oncehook.receiver.ack import Response
from oncehook.receiver.handover import READ_BYTES, Handover, RequestBody
from oncehook.receiver.request import Scope
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]

COUNT = "SELECT count(*) FROM webhook_receipts"


@asynccontextmanager
async def handing_over(inbox: Inbox, *, limit: int = 100, patience: float = 30.0) -> AsyncIterator[Handover]:
    """A handover to an inbox that runs in this event loop, with a Stripe source."""
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield Handover(inbox._runtime.reception.asgi, asyncio.get_running_loop(), limit=limit, patience=patience)


def scope_of(body: bytes) -> Scope:
    headers = [(name.lower().encode(), value.encode()) for name, value in stripe_headers(body).items()]
    return {"type": "http", "method": "POST", "path": "/stripe", "headers": headers}


class StalledBody:
    """A body that arrives when the test lets it."""

    def __init__(self, body: bytes) -> None:
        self.stream = io.BytesIO(body)
        self.is_reading = threading.Event()
        self.go = threading.Event()

    def read(self, size: int) -> bytes:
        self.is_reading.set()
        assert self.go.wait(30)
        return self.stream.read(size)


def status_of(response: Response | None) -> int:
    assert response is not None
    return response[0]


async def test_large_body_is_read_in_parts(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    body = stripe_body("evt_1", filler="x" * 5 * READ_BYTES)
    for length in (len(body), None):
        async with handing_over(make_inbox()) as handover:
            request_body = RequestBody(io.BytesIO(body).read, length)
            response = await asyncio.to_thread(handover.answer, "stripe", scope_of(body), request_body)
            assert status_of(response) == (200 if length is None else 202)
    assert rows("SELECT body FROM webhook_payloads") == [(body,)]


@pytest.mark.parametrize("size", [100, 3 * READ_BYTES])
async def test_body_that_cannot_be_read_is_a_disconnect(
    make_inbox: Callable[..., Inbox], rows: Rows, size: int
) -> None:
    def fail(size: int) -> bytes:
        raise ConnectionResetError

    async with handing_over(make_inbox()) as handover:
        body = RequestBody(fail, size)
        assert await asyncio.to_thread(handover.answer, "stripe", scope_of(b""), body) is None
    assert rows(COUNT) == [(0,)]


async def test_request_beyond_the_limit_gets_503_and_the_others_are_answered(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    body = stripe_body("evt_1")
    stalled = StalledBody(body)
    async with handing_over(make_inbox(), limit=1) as handover:
        waiting = asyncio.create_task(
            asyncio.to_thread(handover.answer, "stripe", scope_of(body), RequestBody(stalled.read, len(body)))
        )
        await eventually(stalled.is_reading.is_set, "the first request waits for its body")
        second = RequestBody(io.BytesIO(body).read, len(body))
        response = await asyncio.to_thread(handover.answer, "stripe", scope_of(body), second)
        assert status_of(response) == 503 and (b"retry-after", b"2") in (response or (0, b"", ()))[2]
        stalled.go.set()
        assert status_of(await waiting) == 202
        third = RequestBody(io.BytesIO(body).read, len(body))
        assert status_of(await asyncio.to_thread(handover.answer, "stripe", scope_of(body), third)) == 200
    assert rows(COUNT) == [(1,)]


async def test_request_gets_503_if_the_event_loop_is_blocked(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    body = stripe_body("evt_1")
    async with handing_over(make_inbox(), patience=0.05) as handover:
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(handover.answer, "stripe", scope_of(body), RequestBody(lambda _: body, len(body)))
            assert status_of(asking.result(30)) == 503  # blocks this loop, in which the receiver runs
    assert rows(COUNT) == [(0,)], "the receiver dropped a request whose sender has its response"


async def test_closed_handover_answers_503_and_waits_for_requests(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    body = stripe_body("evt_1", filler="x" * 2 * READ_BYTES)
    stalled = StalledBody(body)
    async with handing_over(make_inbox()) as handover:
        waiting = asyncio.create_task(
            asyncio.to_thread(handover.answer, "stripe", scope_of(body), RequestBody(stalled.read, len(body)))
        )
        await eventually(stalled.is_reading.is_set, "the request waits for its body")
        closing = asyncio.create_task(handover.close(30))
        await eventually(lambda: handover._is_closed, "the handover is closing")
        late = RequestBody(io.BytesIO(body).read, len(body))
        assert status_of(await asyncio.to_thread(handover.answer, "stripe", scope_of(body), late)) == 503
        assert not closing.done()
        stalled.go.set()
        assert status_of(await waiting) == 202
        await closing
    assert rows(COUNT) == [(1,)]


async def test_thread_that_gives_up_ends_the_request(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    def give_up(size: int) -> bytes:
        raise SystemExit

    body = stripe_body("evt_1", filler="x" * 2 * READ_BYTES)
    async with handing_over(make_inbox()) as handover:
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(handover.answer, "stripe", scope_of(body), RequestBody(give_up, len(body)))
            await eventually(asking.done, "the thread has ended")
        assert isinstance(asking.exception(), SystemExit)
        await eventually(lambda: not handover._tasks, "the receiver does not wait for the body")
    assert rows(COUNT) == [(0,)]


async def test_caller_in_another_event_loop_awaits_the_response(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    small, large = stripe_body("evt_1"), stripe_body("evt_2", filler="x" * 2 * READ_BYTES)

    async def send_requests(handover: Handover) -> list[Response | None]:
        return await asyncio.gather(
            *(
                handover.answer_async("stripe", scope_of(body), RequestBody(io.BytesIO(body).read, len(body)))
                for body in (small, large, small)
            ),
            handover.answer_async("unknown", scope_of(small), RequestBody(io.BytesIO(small).read, len(small))),
        )

    async with handing_over(make_inbox()) as handover:
        responses = await asyncio.to_thread(lambda: asyncio.run(send_requests(handover)))
    assert sorted(map(status_of, responses)) == [200, 202, 202, 404]
    assert rows("SELECT event_id FROM webhook_receipts ORDER BY event_id") == [("evt_1",), ("evt_2",)]
