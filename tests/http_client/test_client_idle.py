"""Idle connections of the HTTP client: when they are used again, closed and forgotten."""

import asyncio

import pytest

from oncehook.http_client import client
from oncehook.model.errors import SendFailed
from tests.support.http_client import BODY, open_client
from tests.support.http_target import close_after, http_response, receiving, wait_for
from tests.support.waiting import eventually, stays_true

pytestmark = pytest.mark.anyio


async def test_connection_that_is_used_again_is_not_closed_as_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a target that answers late would get the request a second time."""
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.2)
    go = asyncio.Event()
    async with receiving(http_response(200), wait_for(go, http_response(200))) as receiver, open_client() as http:
        await http.send(receiver.url, BODY, {}, trusted=True, timeout=30)
        sending = asyncio.create_task(http.send(receiver.url, BODY, {}, trusted=True, timeout=30))
        await eventually(lambda: len(receiver.requests) == 2, "the second request arrives")
        await stays_true(lambda: receiver.connections == 1, "the request is not sent again", seconds=0.4)
        go.set()
        assert (await sending).status == 200
        assert (receiver.connections, len(receiver.requests)) == (1, 2)


async def test_idle_connections_of_many_targets_are_forgotten_when_they_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MAX_IDLE_ORIGINS", 1)
    async with receiving() as first, receiving() as second, receiving() as third, open_client() as http:
        for receiver in (first, second):
            await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        for (connection,) in http._idle.values():
            connection.close()
        await http.send(third.url, BODY, {}, trusted=True, timeout=5)
        assert list(http._idle) == [(f"http://127.0.0.1:{third.port}", True)]


async def test_closed_idle_connection_is_not_reused() -> None:
    async with receiving() as receiver, open_client() as http:
        await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        ((idle,),) = http._idle.values()
        idle.close()
        assert (await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)).status == 200
        assert receiver.connections == 2


async def test_response_that_breaks_off_on_a_reused_connection_is_not_requested_again() -> None:
    cut = close_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    async with receiving(http_response(200), cut) as receiver, open_client() as http:
        await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        with pytest.raises(SendFailed, match="before the response was complete"):
            await http.send(receiver.url, BODY, {}, trusted=True, timeout=5)
        assert len(receiver.requests) == 2
