"""The memory of incomplete bodies: its limit, and that every end of a read frees what the body held."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncehook.model.errors import Unavailable
from oncehook.receiver.request import BodyReadLimits, ClientDisconnected, RequestRejected, read_body
from tests.support.waiting import hang, next_turn

pytestmark = pytest.mark.anyio

Receive = Callable[[], Awaitable[dict[str, Any]]]
LAST = {"type": "http.request", "body": b"x" * 4}
DISCONNECTED = {"type": "http.disconnect"}


def part(size: int) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": True}


def sends(*messages: dict[str, Any]) -> Receive:
    """A client that sends these messages, and then nothing."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await hang()
        return waiting.pop(0)

    return receive


@pytest.mark.parametrize(
    ("messages", "error", "code"),
    [
        ((part(6), LAST), None, None),
        ((part(6), part(5), LAST), Unavailable, None),
        ((part(6), part(15), LAST), RequestRejected, "too_large"),
        ((part(6), DISCONNECTED), ClientDisconnected, None),
        ((part(6),), RequestRejected, "timeout"),
    ],
    ids=["complete", "over the limit of memory", "too large", "disconnected", "too slow"],
)
async def test_every_end_of_a_read_frees_the_memory_of_the_body(
    messages: tuple[dict[str, Any], ...], error: type[Exception] | None, code: str | None
) -> None:
    limits = BodyReadLimits(time_limit=0.05, limit_bytes=10)
    for _ in range(2):  # the second read has as much memory as the first
        if error is None:
            assert len(await read_body(sends(*messages), 20, limits)) == 10
        else:
            with pytest.raises(error) as ended:
                await read_body(sends(*messages), 20, limits)
            assert getattr(ended.value, "code", None) == code
        assert limits.held_bytes == 0


async def test_incomplete_bodies_of_all_senders_share_the_limit_of_memory() -> None:
    limits = BodyReadLimits(time_limit=30, limit_bytes=10)
    other = asyncio.create_task(read_body(sends(part(6)), 20, limits))
    await next_turn()
    assert limits.held_bytes == 6
    with pytest.raises(Unavailable, match="too many bytes of incomplete bodies") as full:
        await read_body(sends(part(5), LAST), 20, limits)
    assert full.value.retry_after == 2
    assert len(await read_body(sends(part(4), LAST), 20, limits)) == 8  # exactly at the limit
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert limits.held_bytes == 0
