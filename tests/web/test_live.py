"""The stream of live updates: it notifies of changes, keeps connections alive, and ends."""

import asyncio

import pytest

from oncehook import Inbox
from oncehook.web import live
from oncehook.web.live import Live
from tests.support.dashboard import send

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)


@pytest.fixture
def updates(inbox: Inbox) -> Live:
    return Live(inbox._runtime.store.stats)


async def test_first_event_has_the_id_and_only_a_change_says_changed(inbox: Inbox, updates: Live) -> None:
    stream = updates.stream()
    assert b": connected" in await anext(stream)
    assert (await anext(stream)).startswith(b"id: ")
    await send(inbox, "evt_1")
    assert (await anext(stream)).startswith(b"event: changed\ndata: \nid: ")
    await stream.aclose()


async def test_reconnecting_page_is_notified_of_what_it_missed(updates: Live) -> None:
    stream = updates.stream(last_id="an older state")
    await anext(stream)
    assert (await anext(stream)).startswith(b"event: changed\n")
    await stream.aclose()


async def test_page_is_notified_of_an_event_between_its_rendering_and_its_stream(inbox: Inbox, updates: Live) -> None:
    rendered_first = updates.token
    assert rendered_first == "", "no page was open, so no state is known"
    stream = updates.stream(last_id=rendered_first)
    await anext(stream)
    assert (await anext(stream)).startswith(b"event: changed\n"), "the page cannot know that it shows the newest state"
    rendered = updates.token
    await send(inbox, "evt_1")
    other = updates.stream(last_id=rendered)
    await anext(other)
    assert (await anext(other)).startswith(b"event: changed\n")
    await stream.aclose()
    await other.aclose()


async def test_page_that_shows_the_newest_state_is_not_loaded_again(updates: Live) -> None:
    stream = updates.stream()
    await anext(stream)
    await anext(stream)
    other = updates.stream(last_id=updates.token)
    await anext(other)
    waiting = asyncio.ensure_future(anext(other))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0], "nothing changed"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.aclose()


async def test_one_query_serves_all_streams_and_none_runs_without_a_stream(updates: Live) -> None:
    streams = [updates.stream() for _ in range(3)]
    for stream in streams:
        await anext(stream)
    assert updates.listeners == 3
    assert updates._poller is not None and not updates._poller.done()
    for stream in streams:
        await stream.aclose()
    assert updates.listeners == 0 and updates._poller is None, "no query may run while no page is open"


async def test_idle_stream_sends_a_keepalive(updates: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = updates.stream()
    assert b": connected" in await anext(stream) and (await anext(stream)).startswith(b"id: ")
    monkeypatch.setattr(live, "KEEPALIVE_SECONDS", 0.01)
    assert await anext(stream) == b": keepalive\n\n"
    await stream.aclose()


async def test_stream_ends_when_the_service_stops_and_when_its_time_is_over(inbox: Inbox, updates: Live) -> None:
    stream = updates.stream()
    await anext(stream)
    await anext(stream)
    updates.stop()
    assert [piece async for piece in stream] == []
    limited = Live(inbox._runtime.store.stats, stream_seconds=0.02)
    async with asyncio.timeout(20):
        pieces = [piece async for piece in limited.stream()]
    assert b"retry: 100" in pieces[0], "the page must open the next stream at once"


async def test_limit_of_streams_is_reported(updates: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    before = updates.is_full
    stream = updates.stream()
    await anext(stream)
    assert (before, updates.is_full) == (False, True)
    await stream.aclose()
