"""Pruning all data of an inbox, or counting what would be pruned."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.runtime.pruning import prune_all
from oncehook.testing import advance, deliver, drain
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio

COUNT = "SELECT count(*) FROM webhook_receipts"
EXPIRE = (
    "UPDATE webhook_receipts SET status = 'processed', received_at = '2020-01-01T00:00:00.000000Z', "
    "processed_at = '2020-01-01T00:00:00.000000Z' WHERE event_id <> 'evt_3'"
)


async def make_expired(inbox: Inbox, rows: Rows) -> None:
    """Two receipts that are past their retention, and one that is not."""
    await claim(inbox, "evt_1", "evt_2", "evt_3")
    rows(EXPIRE)


async def test_a_dry_run_counts_and_deletes_nothing(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await make_expired(inbox, rows)
        runtime = inbox._runtime
        counted = await prune_all(runtime.store, runtime.settings, runtime.horizons.values(), dry_run=True)
        assert counted is not None and sum(counted.receipts.values()) == 2
        assert rows(COUNT) == [(3,)]


async def test_pruning_deletes_receipts_that_are_past_their_retention(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await make_expired(inbox, rows)
        runtime = inbox._runtime
        pruned = await prune_all(runtime.store, runtime.settings, runtime.horizons.values())
        assert pruned is not None and sum(pruned.receipts.values()) == 2
        assert rows("SELECT event_id FROM webhook_receipts") == [("evt_3",)]


@pytest.mark.parametrize(("settings", "expected"), [({}, 0), ({"email_retention": "30d"}, 1)])
async def test_email_facts_are_pruned_only_if_they_have_a_retention(
    make_inbox: Callable[..., Inbox], settings: dict[str, str], expected: int
) -> None:
    inbox = make_inbox(**settings)
    inbox.source("postmark", verify="none", email=True)
    bounce = {"RecordType": "Bounce", "ID": 1, "MessageID": "m1", "Email": "jane@example.com", "Type": "HardBounce"}
    async with inbox.lifespan():
        assert (await deliver(inbox, "postmark", bounce)).status == 202
        await drain(inbox)
        await advance(inbox, "60d")
        runtime = inbox._runtime
        counted = await prune_all(runtime.store, runtime.settings, runtime.horizons.values(), dry_run=True)
        assert counted is not None and counted.email == expected
        pruned = await prune_all(runtime.store, runtime.settings, runtime.horizons.values())
        assert pruned is not None and pruned.email == expected
