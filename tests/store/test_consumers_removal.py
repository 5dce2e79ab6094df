"""Consumers in the database: the setting `paused`, and their removal."""

import asyncio
import json

import psycopg
import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store.consumers import FROM_SETTINGS
from oncehook.store.store import Store
from tests.support.ages import set_status
from tests.support.events import Rows
from tests.support.fsck import assert_fsck_is_clean
from tests.support.stores import settle
from tests.support.work import claim

pytestmark = pytest.mark.anyio

KEY = ("ledger", "stripe")
STATES = "SELECT consumer, status, last_error FROM webhook_receipts ORDER BY event_id, consumer"


async def register(store: Store, *, paused: bool) -> None:
    await store.consumers.register({KEY: ["*"]}, {"ledger": {"paused": True} if paused else {}})


async def paused_by(store: Store) -> list[str]:
    return [row.actor for row in await store.pauses.active() if row.consumer == "ledger"]


async def test_consumer_is_paused_when_the_setting_appears_and_resumed_when_it_is_gone(
    store: Store, rows: Rows
) -> None:
    await register(store, paused=True)
    assert await paused_by(store) == [FROM_SETTINGS]
    await register(store, paused=False)
    assert await paused_by(store) == []
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    assert [(actor, action, json.loads(detail)) for actor, action, detail in audited] == [
        (FROM_SETTINGS, "pause", {"consumer": "ledger"}),
        (FROM_SETTINGS, "resume", {"consumer": "ledger"}),
    ]


async def test_consumer_that_a_person_resumed_stays_resumed_while_the_setting_stays(store: Store) -> None:
    await register(store, paused=True)
    assert await store.pauses.resume("", "ann", consumer="ledger")
    await register(store, paused=True)
    await store.consumers.register({KEY: ["*", "invoice.*"]}, {"ledger": {"paused": True}})
    assert await paused_by(store) == []


async def test_setting_that_appears_again_pauses_although_the_consumer_lost_a_source(store: Store, rows: Rows) -> None:
    sources = {KEY: ["*"], ("ledger", "github"): ["push"]}
    await store.consumers.register(sources, {"ledger": {"paused": True}})
    await register(store, paused=False)
    assert await paused_by(store) == []
    await register(store, paused=True)
    assert await paused_by(store) == [FROM_SETTINGS]
    kept = rows("SELECT source, patterns, settings FROM webhook_consumers WHERE name = 'ledger' ORDER BY source")
    assert [(source, json.loads(patterns), json.loads(settings)) for source, patterns, settings in kept] == [
        ("github", ["push"], {"paused": True}),
        ("stripe", ["*"], {"paused": True}),
    ]


async def test_pause_of_a_person_is_not_ended_by_the_setting(store: Store) -> None:
    await register(store, paused=False)
    await store.pauses.pause("", "ann", consumer="ledger")
    await register(store, paused=True)
    await register(store, paused=False)
    assert await paused_by(store) == ["ann"]


async def test_removal_deletes_the_subscription_handlers_rate_and_pause(store: Store, rows: Rows) -> None:
    await register(store, paused=True)
    await store.consumers.register({("search", "stripe"): ["*"]}, {})
    rows(
        "INSERT INTO webhook_handlers (worker, consumer, source, pattern, matcher, is_projection) "
        "VALUES ('w', 'ledger', 'stripe', '*', '*', false), ('w', 'search', 'stripe', '*', '*', false)"
    )
    for name in ("ledger", "search"):
        await store.rates.take(name, 1, 1.0, 1.0)
    await store.pauses.pause("", "bob", consumer="search")
    await store.pauses.pause("github", "bob")
    before = await store.directory.revision()
    assert await store.consumers.remove("ledger", "ann") == ["stripe"]
    assert await store.directory.revision() > before
    assert [row.name for row in await store.consumers.all()] == ["search"]
    assert rows("SELECT consumer FROM webhook_handlers") == rows("SELECT consumer FROM webhook_rates") == [("search",)]
    assert [(row.source, row.consumer) for row in await store.pauses.active()] == [("", "search"), ("github", "")]
    actor, action, detail = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id DESC LIMIT 1")[0]
    assert (actor, action, json.loads(detail)) == (
        "ann",
        "remove_consumer",
        {"consumer": "ledger", "sources": ["stripe"]},
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("status", list(State))
@pytest.mark.parametrize("serial_key", [None, "in_7"])
async def test_receipts_of_the_consumer_that_are_not_finished_become_ignored(
    store: Store, database: str, rows: Rows, status: State, serial_key: str | None
) -> None:
    await claim(store, "evt_1", copies=(ConsumerClaim("ledger", serial_key=serial_key), ConsumerClaim("search")))
    set_status(database, "evt_1", "ledger", status.value)
    is_open = status not in (State.PROCESSED, State.IGNORED)
    assert await store.consumers.open_receipts("ledger", 10) == ({status.value: 1} if is_open else {})
    assert await store.consumers.end_receipts("ledger", "it was removed", 10) == is_open
    ended = ("ledger", "ignored", "it was removed") if is_open else ("ledger", status.value, None)
    assert [tuple(row) for row in rows(STATES)] == [ended, ("main", "received", None), ("search", "received", None)]
    assert await store.consumers.open_receipts("ledger", 10) == {}


async def test_unhandled_receipts_and_old_errors_are_ended_in_batches(store: Store, rows: Rows) -> None:
    await claim(store, *(f"evt_{n}" for n in range(5)), copies=(ConsumerClaim("ledger"),))
    rows("UPDATE webhook_receipts SET status = 'retrying', last_error = 'KeyError', unhandled_at = received_at")
    batches = [await store.consumers.end_receipts("ledger", "it was removed", 2) for _ in range(4)]
    assert batches == [2, 2, 1, 0]
    reasons = rows("SELECT DISTINCT last_error FROM webhook_receipts WHERE consumer = 'ledger'")
    assert reasons == [("it was removed; the last error was: KeyError",)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE status = 'retrying'") == [(5,)]


async def test_every_open_receipt_is_ended_among_many_others(store: Store, database: str, rows: Rows) -> None:
    """More receipts than a batch are finished, or belong to other consumers. Each open one is of another kind."""
    ledger = store.leases_of("ledger")

    async def arrive(*names: str, settled: State | None = None, after: float | None = None) -> None:
        for name in names:
            copies = (
                ConsumerClaim("ledger", serial_key=name if "serial" in name else None),
                ConsumerClaim("search", serial_key=name),
            )
            await claim(store, name, copies=copies)
        if settled is not None:
            await settle(store, await ledger.take(10, 30, "worker"), settled, after=after)

    await arrive(*(f"{key}done {n}" for n in range(3) for key in ("", "serial ")), settled=State.PROCESSED)
    await arrive("failed", "serial failed", settled=State.FAILED)
    await arrive("retrying", "serial retrying", settled=State.RETRYING, after=3600.0)
    await arrive("leased", "serial leased")
    assert len(await ledger.take(10, 30, "worker")) == 2
    await arrive("waiting", "serial waiting", "held", "serial held")
    rows("UPDATE webhook_receipts SET unhandled_at = received_at WHERE event_id LIKE '%held'")
    dead, *_ = await store.leases_of("search").take(3, 30, "worker")
    await settle(store, [dead], State.FAILED)
    counts = await store.consumers.open_receipts("ledger", 100)
    assert counts == {"failed": 2, "retrying": 2, "processing": 2, "received": 4}
    while await store.consumers.end_receipts("ledger", "it was removed", 2):
        pass
    states = "SELECT consumer, status, count(*) FROM webhook_receipts GROUP BY 1, 2 ORDER BY 1, 2"
    assert rows(states) == [
        ("ledger", "ignored", 10), ("ledger", "processed", 6), ("main", "received", 16),
        ("search", "failed", 1), ("search", "processing", 2), ("search", "received", 13),
    ]  # fmt: skip
    assert_fsck_is_clean(database)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_receipt_that_a_worker_settles_at_this_moment_is_skipped(store: Store, database: str) -> None:
    await claim(store, "evt_1", "evt_2", copies=(ConsumerClaim("ledger"),))
    with psycopg.connect(database) as worker:
        worker.execute("SELECT 1 FROM webhook_receipts WHERE event_id = 'evt_1' AND consumer = 'ledger' FOR UPDATE")
        async with asyncio.timeout(5):
            assert await store.consumers.end_receipts("ledger", "it was removed", 10) == 1
    assert await store.consumers.end_receipts("ledger", "it was removed", 10) == 1


async def test_worker_of_an_ended_receipt_loses_its_lease(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1", copies=(ConsumerClaim("ledger"),))
    leases = store.leases_of("ledger")
    (leased,) = await leases.take(10, 30, "worker-1")
    assert await store.consumers.end_receipts("ledger", "it was removed", 10) == 1
    settled = Settled(leased.receipt, leased.lease, status=State.PROCESSED, outcome="processed")
    assert await leases.settle([settled]) == set()
    assert rows("SELECT status FROM webhook_receipts WHERE consumer = 'ledger'") == [("ignored",)]
