"""The cache of paused sources."""

import pytest

from oncehook.store.paused_sources import MAX_AGE, PausedSources
from oncehook.store.store import Store
from tests.support.clocks import ManualClock

pytestmark = pytest.mark.anyio


async def test_sources_are_those_with_a_pause(store: Store) -> None:
    await store.pauses.pause("stripe", "jane")
    assert await PausedSources(store.pauses).sources() == {"stripe"}


async def test_sources_are_cached_for_a_second(store: Store) -> None:
    clock = ManualClock()
    paused = PausedSources(store.pauses, clock)
    assert await paused.sources() == frozenset()
    await store.pauses.pause("stripe", "jane")
    assert await paused.sources() == frozenset(), "the cached answer is less than a second old"
    clock.advance(MAX_AGE)
    assert await paused.sources() == {"stripe"}


async def test_resumed_source_is_removed(store: Store) -> None:
    clock = ManualClock()
    paused = PausedSources(store.pauses, clock)
    await store.pauses.pause("stripe", "jane")
    assert await paused.sources() == {"stripe"}
    await store.pauses.resume("stripe", "jane")
    clock.advance(MAX_AGE)
    assert await paused.sources() == frozenset()


async def test_expired_answer_is_queried_again_at_once(store: Store) -> None:
    paused = PausedSources(store.pauses, ManualClock())
    assert await paused.sources() == frozenset() and paused.consumers == frozenset()
    await store.pauses.pause("", "jane", consumer="search")
    paused.expire()
    assert await paused.sources() == frozenset() and paused.consumers == {"search"}
