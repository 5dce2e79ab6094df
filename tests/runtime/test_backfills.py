"""Backfills of an inbox: a consumer of its code is registered first."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from oncehook import ConfigurationError, Event, Inbox
from oncehook.runtime.backfills import plan_for
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


async def handle(event: Event) -> None: ...


@pytest.fixture
def shop(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.on("stripe", "invoice.*", consumer="ledger")(handle)
    inbox.on("stripe", "*", consumer="search")(handle)
    return inbox


async def test_only_the_backfilled_consumer_is_registered(shop: Inbox, rows: Rows) -> None:
    runtime, since = shop._runtime, datetime.now(UTC) - timedelta(days=1)
    async with runtime.opened_store() as store:
        planned = await plan_for(runtime, store, "ledger", since=since, dry_run=True)
        assert await store.consumers.all() == [] and planned.events.sources == ("stripe",)
        plan = await plan_for(runtime, store, "ledger", since=since)
        assert [row.name for row in await store.consumers.all()] == ["ledger"]
    assert plan.events.since == since and plan.subscriptions.keys() == {"stripe"}
    assert plan.known_at > plan.events.until


async def test_consumer_without_a_subscription_is_an_error(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    inbox.consumer("ledger", rate="5/s")
    with pytest.raises(ConfigurationError, match="the consumer ledger subscribes to no source"):
        await inbox.backfill("ledger", since="1d")
