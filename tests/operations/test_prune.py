"""Pruning deletes finished receipts and payloads past their retention, and nothing else, on both databases."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import pytest

import oncehook.operations.prune as prune_module
from oncehook import Inbox
from oncehook.config.settings import Horizon
from oncehook.model.rows import Prunable
from oncehook.model.states import State
from oncehook.operations.prune import Pruned, cutoffs, prune
from oncehook.store.store import Store
from oncehook.testing import deliver
from tests.support.ages import create_day, set_age
from tests.support.events import Rows, stripe_body
from tests.support.retention import (
    DAY,
    KEEP_30,
    count_rows,
    events_with_payload,
    prune_now,
    stored_events,
)
from tests.support.servers import run_sql
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_old_receipt_is_deleted_with_its_payload_deliveries_and_attempts(
    store: Store, database: str, rows: Rows
) -> None:
    old, new = await claim(store, "evt_old", "evt_new")
    for receipt in (old, new):
        fingerprint = "x'00'" if database.startswith("sqlite") else "'\\x00'"
        same = "1" if database.startswith("sqlite") else "true"
        run_sql(
            database,
            "INSERT INTO webhook_deliveries (receipt_id, fingerprint, same_body) "
            f"VALUES ({receipt}, {fingerprint}, {same})",
        )
        run_sql(
            database,
            "INSERT INTO webhook_past_attempts (receipt_id, number, started_at, outcome) "
            f"VALUES ({receipt}, 1, '2026-01-01T00:00:00Z', 'processed')",
        )
    set_age(database, "evt_old", 32, "processed")
    set_age(database, "evt_new", 29, "processed")
    done = await prune_now(store)
    assert done.receipts == {"stripe": 1}
    assert stored_events(rows) == ["evt_new"]
    for table in ("webhook_payloads", "webhook_deliveries", "webhook_past_attempts"):
        assert rows(f"SELECT receipt_id FROM {table}") == [(new,)], table


@pytest.mark.parametrize("status", list(State))
async def test_only_finished_receipts_are_deleted_however_old_they_are(
    store: Store, database: str, rows: Rows, status: State
) -> None:
    await claim(store, "evt_1")
    set_age(database, "evt_1", 400, status.value)
    await prune_now(store)
    goes = status in (State.PROCESSED, State.IGNORED)
    assert stored_events(rows) == ([] if goes else ["evt_1"])
    assert count_rows(rows, "webhook_payloads") == (0 if goes else 1)


async def test_event_is_a_duplicate_within_its_window_and_new_after_it(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        set_age(database, "evt_1", 29, "processed")
        await prune_now(inbox._runtime.store)
        assert (await deliver(inbox, "stripe", body)).outcome == (200, "duplicate")
        ((first,),) = rows("SELECT id FROM webhook_receipts")
        set_age(database, "evt_1", 32)
        await prune_now(inbox._runtime.store)
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
    ((second, status),) = rows("SELECT id, status FROM webhook_receipts")
    assert second != first and status == "received"
    assert rows("SELECT receipt_id, body FROM webhook_payloads") == [(second, body)]


async def test_each_source_has_its_own_window_and_unknown_sources_are_skipped(
    store: Store, database: str, rows: Rows
) -> None:
    for source in ("short", "long", "removed"):
        await claim(store, f"evt_{source}", source=source)
        set_age(database, f"evt_{source}", 50, "processed")
    done = await prune_now(store, [Horizon("short", 40 * DAY, 40 * DAY), Horizon("long", 60 * DAY, 60 * DAY)])
    assert done.receipts == {"short": 1}
    assert stored_events(rows) == ["evt_long", "evt_removed"]
    assert events_with_payload(rows) == ["evt_long", "evt_removed"]


async def test_many_receipts_are_deleted_in_small_batches(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 10)
    await claim(store, *(f"evt_{n:03}" for n in range(45)))
    for n in range(0, 45, 5):  # one in five is a dead letter, between the others
        set_age(database, f"evt_{n:03}", 40, "failed")
    for n in range(45):
        if n % 5:
            set_age(database, f"evt_{n:03}", 40 + n % 3, "processed")
    progress: list[int] = []
    done = await prune(store, KEEP_30, progress=lambda so_far: progress.append(so_far.receipts.total()))
    assert done is not None and done.receipts == {"stripe": 36}
    assert progress == [10, 20, 30, 36]
    assert stored_events(rows) == [f"evt_{n:03}" for n in range(0, 45, 5)] == events_with_payload(rows)


async def test_duplicates_are_recognized_after_the_payload_was_deleted(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for name in ("evt_done", "evt_dead", "evt_young"):
            await deliver(inbox, "stripe", stripe_body(name))
        set_age(database, "evt_done", 9, "processed")
        set_age(database, "evt_dead", 9, "failed")
        set_age(database, "evt_young", 5, "processed")
        await prune_now(inbox._runtime.store, [Horizon("stripe", 30 * DAY, 7 * DAY)])
        assert stored_events(rows) == ["evt_dead", "evt_done", "evt_young"]
        assert events_with_payload(rows) == ["evt_dead", "evt_young"]
        assert (await deliver(inbox, "stripe", stripe_body("evt_done"))).outcome == (200, "duplicate")
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_done'")
    assert rows(f"SELECT count(*) FROM webhook_payloads WHERE receipt_id = {receipt}") == [(0,)]


async def test_payload_retention_differs_per_source(store: Store, database: str, rows: Rows) -> None:
    for source in ("short", "long"):
        await claim(store, f"evt_{source}", source=source)
        set_age(database, f"evt_{source}", 5, "processed")
    await prune_now(store, [Horizon("short", 30 * DAY, 3600), Horizon("long", 30 * DAY, 20 * DAY)])
    assert stored_events(rows) == ["evt_long", "evt_short"]
    assert events_with_payload(rows) == ["evt_long"]


async def test_short_payload_retention_is_exact(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2")
    set_age(database, "evt_1", 61 / 1440, "processed")
    set_age(database, "evt_2", 59 / 1440, "processed")
    done = await prune_now(store, [Horizon("stripe", 30 * DAY, 3600)])
    assert done.payloads == {"stripe": 1}
    assert events_with_payload(rows) == ["evt_2"]


async def test_counting_prunable_rows_deletes_nothing(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2", "evt_3", "evt_4")
    set_age(database, "evt_1", 40, "processed")
    set_age(database, "evt_2", 10, "processed")
    set_age(database, "evt_3", 40, "failed")
    horizons = [Horizon("stripe", 30 * DAY, 7 * DAY)]
    found = await store.retention.prunable(*cutoffs(horizons, await store.operations.now()))
    assert found == [Prunable("stripe", 1, 2)]
    assert count_rows(rows, "webhook_receipts") == count_rows(rows, "webhook_payloads") == 4
    await prune_now(store, horizons)
    assert stored_events(rows) == ["evt_2", "evt_3", "evt_4"]
    found = await store.retention.prunable(*cutoffs(horizons, await store.operations.now()))
    assert found == [Prunable("stripe", 0, 0)]


async def test_interrupted_prune_is_continued_by_the_next(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 5)
    await claim(store, *(f"evt_{n:02}" for n in range(20)))
    for n in range(20):
        set_age(database, f"evt_{n:02}", 40, "processed")

    def stop(done: Pruned) -> None:
        if done.receipts.total() >= 10:
            raise KeyError("pulled the plug")

    with pytest.raises(KeyError):
        await prune(store, KEEP_30, progress=stop)
    assert count_rows(rows, "webhook_receipts") == 10
    done = await prune_now(store)
    assert done.receipts.total() == 10
    assert stored_events(rows) == []


async def test_deliveries_are_accepted_during_a_large_prune(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 20)
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await claim(inbox._runtime.store, *(f"old_{n}" for n in range(400)))
        run_sql(database, "UPDATE webhook_receipts SET status = 'processed'")
        if database.startswith("sqlite"):
            run_sql(database, "UPDATE webhook_receipts SET received_at = '2020-01-01T00:00:00.000000Z'")
        else:
            run_sql(database, "UPDATE webhook_receipts SET received_at = '2020-01-01T00:00:00Z'")
            create_day(database, datetime(2020, 1, 1).date())
            run_sql(database, "UPDATE webhook_payloads SET day = '2020-01-01'")
        pruning = asyncio.create_task(prune(inbox._runtime.store, KEEP_30))
        answers: list[tuple[int, str]] = []
        while not pruning.done():
            answers.append((await deliver(inbox, "stripe", stripe_body(f"evt_{len(answers)}"))).outcome)
        done = await pruning
    assert done is not None and done.receipts == {"stripe": 400}
    assert answers and set(answers) == {(202, "accepted")}
    assert count_rows(rows, "webhook_receipts") == count_rows(rows, "webhook_payloads") == len(answers)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("phase", ["left", "arriving"])
async def test_rows_that_are_copies_of_a_move_are_not_pruned(
    store: Store, database: str, rows: Rows, phase: str
) -> None:
    await claim(store, "evt_old")
    set_age(database, "evt_old", 32, "processed")
    columns = "source, phase, from_shard, to_shard, actor"
    run_sql(database, f"INSERT INTO webhook_moves ({columns}) VALUES ('stripe', '{phase}', 'a', 'b', 'me')")
    assert not await prune_now(store)
    assert stored_events(rows) == events_with_payload(rows) == ["evt_old"], "the other shard decides"
