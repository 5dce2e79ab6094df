"""A paused consumer: its events wait, and the other consumers of the same events continue."""

from collections.abc import Callable

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.testing import deliver
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually, stays_true
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

STATES = "SELECT consumer, status, attempts FROM webhook_receipts ORDER BY consumer"


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    """An inbox with a worker, and handlers of the consumers `main` and `ledger`."""
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*")
    async def ship(event: Event) -> None: ...

    @inbox.on("stripe", "*", consumer="ledger")
    async def book(event: Event) -> None: ...

    return inbox


async def test_events_of_a_paused_consumer_wait_and_use_no_attempt(shop: Inbox, rows: Rows) -> None:
    assert await shop.pause(consumer="ledger", reason="slow", actor="ann")
    assert not await shop.pause(consumer="ledger")
    async with shop.lifespan():
        assert (await deliver(shop, "stripe", stripe_body("evt_1"))).status == 202
        await eventually(receipts_are(rows, "processed", 1), "main handles its event")
        await stays_true(receipts_are(rows, "received", 1), "the event of ledger waits")
        assert [tuple(row) for row in rows(STATES)] == [("ledger", "received", 0), ("main", "processed", 1)]
        assert await shop.resume(consumer="ledger", actor="ann")
        await eventually(receipts_are(rows, "processed", 2), "ledger handles its event")
    assert rows("SELECT actor, action FROM webhook_audit ORDER BY id") == [("ann", "pause"), ("ann", "resume")]


async def test_unknown_consumer_and_missing_names_are_errors(shop: Inbox) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no consumer legder: did you mean ledger\?"):
        await shop.pause(consumer="legder")
    with pytest.raises(ValueError, match="pass either a source or a consumer"):
        await shop.pause()
    with pytest.raises(ValueError, match="pass either a source or a consumer"):
        await shop.resume("stripe", consumer="ledger")


async def test_setting_pauses_the_consumer_until_a_person_resumes_it(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    for expected in ([("", "ledger", "oncehook.toml")], []):
        inbox = make_inbox()
        inbox.source("stripe", secrets=["whsec_test"])
        inbox.on("stripe", "*", consumer="ledger")(_handle)
        inbox.consumer("ledger", paused=True)
        async with inbox.lifespan():
            assert [tuple(row) for row in rows("SELECT source, consumer, actor FROM webhook_pauses")] == expected
            await inbox.resume(consumer="ledger")


async def _handle(event: Event) -> None: ...
