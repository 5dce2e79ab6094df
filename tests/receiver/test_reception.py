"""The receiver with its background writers: it wakes workers after commits, and writes everything when it stops."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import Settings, SourceSettings
from oncehook.providers.source import Source
from oncehook.receiver.reception import Reception
from oncehook.store.store import Store
from oncehook.testing import deliver
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio


async def test_a_stop_writes_the_queued_duplicates(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for _ in range(3):
            await deliver(inbox, "stripe", stripe_body("evt_1"))
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(2,)]


@pytest.fixture
async def observed(store: Store) -> AsyncIterator[tuple[Reception, list[str]]]:
    """A reception on a real store, and the calls that wake workers."""
    calls: list[str] = []
    sources = {"stripe": Source("stripe", SourceSettings(secrets=("whsec_test",)), max_body=2**20)}
    sources["stripe"].load_secrets()
    reception = Reception(
        store,
        sources,
        Settings(database=store.settings.database),
        {},
        clock=SYSTEM,
        wake=lambda: calls.append("wake"),
        announce=lambda: calls.append("announce"),
    )
    reception.start()
    yield reception, calls
    await reception.stop()


async def test_a_new_event_wakes_workers_here_and_elsewhere(observed: tuple[Reception, list[str]]) -> None:
    reception, calls = observed
    await reception.claimer.claim([make_claim("evt_1")])
    assert calls == ["wake", "announce"]


async def test_a_duplicate_is_recorded_and_not_announced(observed: tuple[Reception, list[str]], rows: Rows) -> None:
    reception, calls = observed
    await reception.claimer.claim([make_claim("evt_1")])
    calls.clear()
    await reception.claimer.claim([make_claim("evt_1")])
    assert calls == ["wake"], "other processes have no new event to process"
    await reception.duplicates.drain()
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(1,)]


async def test_a_stop_waits_for_running_commits(observed: tuple[Reception, list[str]], rows: Rows) -> None:
    reception, _ = observed
    claims = [asyncio.create_task(reception.claimer.claim([make_claim(f"evt_{number}")])) for number in range(5)]
    await next_turn()
    await reception.stop()
    assert all(task.done() for task in claims)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(5,)]
