"""Fixtures for the tests of effects."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Effect, Event, Inbox
from tests.support.events import Rows
from tests.support.work import QUICK

Mail = tuple[str, str, str]
"""The key, the recipient and the idempotency key of one call of `send_mail`."""


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, and a table that handlers write to."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        yield inbox


@pytest.fixture
def mails(inbox: Inbox) -> list[Mail]:
    """The calls of the effect `send_mail`, which is registered here."""
    calls: list[Mail] = []

    @inbox.effect
    async def send_mail(effect: Effect, to: str) -> None:
        calls.append((effect.key, to, effect.idempotency_key))

    return calls


@pytest.fixture
async def sending(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox without a worker. Its handler requests the effect `send` for every event."""
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*", retry=QUICK)
    async def request(event: Event) -> None:
        await event.effect(f"send:{event.id}", "send", number=1)

    async with inbox.lifespan():
        yield inbox
