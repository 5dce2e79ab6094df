"""Backfills with the sources and consumers of an inbox, on its own store or on a store that a command has opened."""

from datetime import datetime
from typing import TYPE_CHECKING

from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.rows import StoredConsumer
from oncehook.operations.backfill import Backfill, plan_backfill
from oncehook.operations.consumers import check_consumer
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


async def plan_for(
    runtime: "Runtime",
    store: Store,
    consumer: str,
    *,
    since: datetime,
    source: str | None = None,
    type: str | None = None,
    dry_run: bool = False,
) -> Backfill:
    """Plan a backfill. A consumer of the inbox's code is registered first, so that it gets new events from now on.

    Raises ConfigurationError if the consumer or the source is unknown.
    """
    if consumer == MAIN:
        raise ConfigurationError("the consumer main has a receipt of every event: to run them again, use a replay")
    if not runtime.is_running:
        await runtime.managed_sources.load(store)
    if not dry_run:
        await runtime.consumers.register_at(store, consumer)
    rows = await _subscriptions(runtime, store, consumer)
    return await plan_backfill(store, rows, runtime.sources, since=since, source=source, type=type)


async def _subscriptions(runtime: "Runtime", store: Store, consumer: str) -> list[StoredConsumer]:
    """Return the subscriptions of a consumer, with those that a dry run does not register."""
    own = runtime.consumers.own_subscriptions(consumer)
    rows = own | {row.source: row for row in await store.consumers.all() if row.name == consumer}
    if not rows:
        await check_consumer(store, consumer, runtime.consumers.names)
        raise ConfigurationError(
            f"the consumer {consumer} subscribes to no source: start a process with its handlers, or pass "
            "--app module:inbox"
        )
    return list(rows.values())
