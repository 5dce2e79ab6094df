"""The relay settles effects in batches, and a failed write blocks no slot."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Effect, Event, Inbox
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import FailsAtFirst, claim

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with two slots."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


async def test_an_unexpected_error_in_settle_frees_the_slots_of_the_relay(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox._runtime.store.effects, "settle", FailsAtFirst(inbox._runtime.store.effects.settle))

    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.on("stripe", "*")
    async def request(event: Event) -> None:
        await event.effect(event.id, send)

    await claim(inbox, *"abcde")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'")[0][0] >= 1)
    assert inbox._runtime.relay is not None
    relay = inbox._runtime.relay
    await eventually(lambda: not relay._running)
