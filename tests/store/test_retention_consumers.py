"""Retention of events with several consumers: their receipts and their payload are deleted together, or not at all."""

import pytest

from oncehook.config.settings import Horizon
from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from oncehook.operations.forget import forget
from oncehook.operations.prune import count_prunable, cutoffs
from oncehook.store.store import Store
from tests.support.ages import set_age, set_status
from tests.support.events import Rows
from tests.support.retention import DAY, KEEP_30, count_rows, events_with_payload, prune_now
from tests.support.work import claim

pytestmark = pytest.mark.anyio

COPIES = (ConsumerClaim("analytics"), ConsumerClaim("ledger"))


def consumers_of(rows: Rows, event_id: str) -> list[str]:
    return [row[0] for row in rows(f"SELECT consumer FROM webhook_receipts WHERE event_id = '{event_id}' ORDER BY 1")]


@pytest.mark.parametrize("consumer", ["main", "analytics"])
@pytest.mark.parametrize("status", [State.RECEIVED, State.PROCESSING, State.RETRYING, State.FAILED])
async def test_event_stays_whole_while_one_consumer_has_not_finished_it(
    store: Store, database: str, rows: Rows, consumer: str, status: State
) -> None:
    await claim(store, "evt_1", "evt_2", copies=COPIES)
    for event_id in ("evt_1", "evt_2"):
        set_age(database, event_id, 40, "processed")
    set_status(database, "evt_1", consumer, status.value)
    counted = await count_prunable(store, KEEP_30)
    done = await prune_now(store)
    assert done.receipts == counted.receipts == {"stripe": 3}
    assert counted.payloads == {"stripe": 1}
    assert consumers_of(rows, "evt_1") == ["analytics", "ledger", "main"] and consumers_of(rows, "evt_2") == []
    assert events_with_payload(rows) == ["evt_1"]


@pytest.mark.parametrize("consumer", ["main", "ledger"])
async def test_payload_stays_while_one_consumer_may_need_it(
    store: Store, database: str, rows: Rows, consumer: str
) -> None:
    await claim(store, "evt_1", "evt_2", copies=COPIES)
    for event_id in ("evt_1", "evt_2"):
        set_age(database, event_id, 20, "processed")
    set_status(database, "evt_1", consumer, "failed")
    horizons = [Horizon("stripe", 60 * DAY, 10 * DAY)]
    counted = await count_prunable(store, horizons)
    assert counted.payloads == {"stripe": 1} and not counted.receipts
    receipts, payloads = cutoffs(horizons, await store.operations.now())
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None
        assert await pruning.prune_payloads(payloads, None, 100) == ({"stripe": 1}, None)
        assert await pruning.prune_receipts(receipts, None, 100) == ({}, None)
    assert events_with_payload(rows) == ["evt_1"]
    assert count_rows(rows, "webhook_receipts") == 6


@pytest.mark.parametrize("consumer", ["main", "analytics"])
async def test_erasing_through_one_consumer_erases_the_event_of_all(store: Store, rows: Rows, consumer: str) -> None:
    await claim(store, "evt_1", "evt_2", copies=COPIES, object_id="jane@example.com")
    rows("UPDATE webhook_receipts SET last_error = 'no jane@example.com in ' || consumer")
    ((receipt,),) = rows(f"SELECT id FROM webhook_receipts WHERE event_id = 'evt_1' AND consumer = '{consumer}'")
    assert await forget(store, [receipt], actor="ann", address="jane@example.com") == 1
    assert events_with_payload(rows) == ["evt_2"]
    erased = rows("SELECT object_id, last_error FROM webhook_receipts WHERE event_id = 'evt_1'")
    assert erased == [(None, "(erased)")] * 3
    assert rows("SELECT count(*) FROM webhook_receipts WHERE object_id IS NOT NULL") == [(3,)]


async def test_object_is_found_once_per_event_and_erased_for_all_consumers(store: Store, rows: Rows) -> None:
    mains = await claim(store, "evt_1", "evt_2", copies=COPIES, object_id="in_7")
    assert await store.retention.with_object("in_7") == mains
    assert await forget(store, mains, actor="ann", object_id="in_7") == 2
    assert events_with_payload(rows) == []
