"""Statistics of every store: counts, rates, totals and the change token."""

from datetime import timedelta

import pytest

from oncehook.model.claim import ConsumerClaim, Duplicate
from oncehook.model.lease import Settled
from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.model.statistics import DuplicateCount, SourceTotals, WorkCount
from oncehook.model.timestamps import rfc3339
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_counts_group_receipts_by_source_and_status(store: Store) -> None:
    assert await store.stats.counts() == []
    first, *_ = await store.claims.insert(
        [
            make_claim("1", fingerprint=b"f"),
            make_claim("2"),
            make_claim("3", status=State.FAILED),
            make_claim("4", source="github"),
        ]
    )
    await store.claims.note_duplicates(
        [Duplicate(first.receipt, None, body, body == b"f") for body in (b"f", b"g", b"f")]
    )
    counts = await store.stats.counts()
    by_status = {(c.source, c.status): c.receipts for c in counts}
    assert by_status == {("stripe", "received"): 2, ("stripe", "failed"): 1, ("github", "received"): 1}
    assert await store.stats.duplicate_counts() == [DuplicateCount("stripe", 3, 1)]


async def test_empty_store_has_no_sources_and_no_totals(store: Store) -> None:
    assert await store.receipts.sources() == []
    assert await store.stats.source_totals(10) == SourceTotals([], [], {})
    assert await store.stats.rates(await store.operations.now() - timedelta(hours=1), 60) == []


async def test_rates_count_events_by_series_source_and_bucket(store: Store) -> None:
    first, _ = await claim(store, "evt_1", "evt_2", fingerprint=b"f")
    await claim(store, "evt_3", source="other")
    await store.claims.note_duplicates([Duplicate(first, None, b"f", True)] * 3)
    for leased in await store.leases.take(2, 30, "w"):
        failed = Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=60, error="E: x")
        await store.leases.settle([failed])
    await store.leases.take(1, 30, "w")
    now = await store.operations.now()
    rates = await store.stats.rates(now - timedelta(hours=2), 86400)
    counted = {(row.series, row.source): row.number for row in rates}
    assert counted == {
        ("received", "stripe"): 2,
        ("received", "other"): 1,
        ("duplicate", "stripe"): 3,
        ("failed", "stripe"): 2,
    }
    assert {row.bucket for row in rates} <= {
        int(now.timestamp()) // 86400 * 86400,
        int(now.timestamp() - 7200) // 86400 * 86400,
    }
    fine = await store.stats.rates(now - timedelta(hours=2), 60)
    assert all(row.bucket % 60 == 0 and abs(row.bucket - now.timestamp()) < 120 for row in fine)
    assert await store.stats.rates(now + timedelta(hours=1), 60) == []


async def test_crash_counts_as_a_failed_attempt(store: Store) -> None:
    await claim(store, "evt_1", "evt_2", "evt_3", "evt_4")
    results = [
        (State.PROCESSED, "processed", None),
        (State.RETRYING, "retrying", 60.0),
        (State.RETRYING, "crashed", 60.0),
        (State.FAILED, "failed", None),
    ]
    for leased, (state, outcome, after) in zip(await store.leases.take(4, 30, "w"), results, strict=True):
        result = Settled(
            leased.receipt, leased.lease, state, outcome, after=after, error="E: x", crashed=outcome == "crashed"
        )
        await store.leases.settle([result])
    rates = await store.stats.rates(await store.operations.now() - timedelta(hours=1), 86400)
    assert [row.number for row in rates if row.series == "failed"] == [3]


async def test_source_totals_are_counted_up_to_a_bound(store: Store) -> None:
    await claim(store, "a", "b", "c")
    await claim(store, "d", "e", status=State.FAILED)
    last = (await store.receipts.find(Filter(), limit=1))[0]
    totals = await store.stats.source_totals(100)
    assert totals.waiting == [WorkCount("stripe", "main", 3)]
    assert totals.dead_letters == [WorkCount("stripe", "main", 2)]
    assert totals.last_received_at == {"stripe": rfc3339(last.received_at)}
    assert (await store.stats.source_totals(2)).waiting == [WorkCount("stripe", "main", 2)]


async def test_change_token_changes_with_every_change_and_only_then(store: Store) -> None:
    pulses = [await store.stats.change_token(), await store.stats.change_token()]
    (receipt,) = await claim(store, "evt_1", fingerprint=b"f")
    pulses.append(await store.stats.change_token())
    await store.claims.note_duplicates([Duplicate(receipt, None, b"f", True)])
    pulses.append(await store.stats.change_token())
    (leased,) = await store.leases.take(1, 30, "w")
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")])
    pulses.append(await store.stats.change_token())
    await store.operations.audit("me", "test", {})
    pulses.append(await store.stats.change_token())
    assert pulses[0] == pulses[1] and len(set(pulses)) == 5


@pytest.mark.parametrize("waits", ["serial", "behind what is paused"])
async def test_change_token_changes_when_an_old_event_is_processed(store: Store, waits: str) -> None:
    await store.claims.insert([make_claim("evt_paused", source="paused")])
    await store.pauses.pause("paused", "me")
    await store.claims.insert([make_claim("evt_old", serial_key="in_1" if waits == "serial" else None)])
    await claim(store, *(f"evt_{number:03d}" for number in range(201)), status=State.FAILED)
    before = await store.stats.change_token()
    (leased,) = await store.leases.take(1, 30, "w")
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")])
    assert leased.event_id == "evt_old"
    assert await store.stats.change_token() != before


async def test_dead_letters_are_grouped_by_source_handler_and_error(store: Store) -> None:
    await claim(store, "a", "b", status=State.FAILED, last_error="E: one")
    (last,) = await claim(store, "c", status=State.FAILED, last_error="E: two")
    groups = await store.stats.dead_letters(10)
    assert [(group.last_error, group.receipts) for group in groups] == [("E: one", 2), ("E: two", 1)]
    assert groups[1].last_receipt == last
    assert len(await store.stats.dead_letters(1)) == 1


async def test_lag_is_the_time_since_the_oldest_receipt_was_due(store: Store) -> None:
    await claim(store, "a")
    await claim(store, "b", source="github", serial_key="k")
    await store.schema.move_times_back(3600)
    await claim(store, "c")
    lags = await store.stats.lags()
    assert {row.source for row in lags} == {"stripe", "github"} and all(3500 < row.lag < 3700 for row in lags)


async def test_receipts_of_named_consumers_count_as_work_and_not_as_events(store: Store) -> None:
    copies = (ConsumerClaim("analytics"), ConsumerClaim("ledger", State.FAILED, "E: no account"))
    (receipt,) = await claim(store, "evt_1", copies=copies, fingerprint=b"f")
    await store.claims.note_duplicates([Duplicate(receipt, None, b"f", True)])
    now = await store.operations.now()
    rates = await store.stats.rates(now - timedelta(hours=1), 86400)
    assert {(row.series, row.number) for row in rates} == {("received", 1), ("duplicate", 1)}
    assert await store.stats.duplicate_counts() == [DuplicateCount("stripe", 1, 0)]
    counts = {(row.consumer, row.status): row.receipts for row in await store.stats.counts()}
    assert counts == {("main", "received"): 1, ("analytics", "received"): 1, ("ledger", "failed"): 1}
    totals = await store.stats.source_totals(100)
    assert sorted((row.consumer, row.number) for row in totals.waiting) == [("analytics", 1), ("main", 1)]
    assert totals.dead_letters == [WorkCount("stripe", "ledger", 1)]
    assert [row.consumer for row in await store.stats.lags()] == ["analytics", "main"]
    (group,) = await store.stats.dead_letters(10)
    assert (group.consumer, group.last_error) == ("ledger", "E: no account")


async def test_newest_arrivals_are_searched_among_events_and_not_among_their_copies(store: Store) -> None:
    copies = tuple(ConsumerClaim(f"consumer-{number}") for number in range(5))
    await claim(store, "evt_0", source="github")
    await claim(store, "evt_1", "evt_2", copies=copies)
    assert set((await store.stats.source_totals(3)).last_received_at) == {"github", "stripe"}
    silent = await store.alerts.measure("silent_sources", {"most": 3})
    assert {row.source for row in silent} == {"github", "stripe"}
