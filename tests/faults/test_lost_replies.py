"""A commit whose reply is lost: the store finds out whether it happened. A proxy loses exactly that reply."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from oncehook import Event, Inbox, Retry
from oncehook.config.settings import Settings
from oncehook.model.claim import ConsumerClaim
from oncehook.model.errors import StoreUnavailable
from oncehook.model.states import State
from oncehook.store import make_store
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.proxy import Proxy, proxied
from tests.support.servers import Postgres, run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ROWS = "SELECT event_id, id FROM webhook_receipts ORDER BY event_id"


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def proxy_and_store(address: str) -> AsyncIterator[tuple[Proxy, Store]]:
    async with proxied(address) as (proxy, through):
        store = make_store(Settings(database=through, claim_timeout=4.0))
        await store.open()
        await store.claims.insert([make_claim("warm")])  # draws ids and prepares statements
        yield proxy, store
        proxy.flow()
        proxy.accept()
        await store.close()


async def test_committed_claim_without_a_reply_is_fresh_and_has_one_row(
    proxy_and_store: tuple[Proxy, Store], address: str
) -> None:
    proxy, store = proxy_and_store
    proxy.lose_reply(b"evt_lost")
    old, lost = await store.claims.insert([make_claim("warm"), make_claim("evt_lost", body=b"kept")])
    assert proxy.lost.is_set()
    assert (old.fresh, lost.fresh, lost.same_body) == (False, True, True)
    assert run_sql(address, ROWS) == [("evt_lost", lost.receipt), ("warm", old.receipt)]
    payload = await store.receipts.payload(lost.receipt)
    assert payload is not None and payload.body == b"kept"
    assert not (await store.claims.insert([make_claim("evt_lost")]))[0].fresh


async def test_claim_that_never_arrived_is_sent_again_and_has_one_row(
    proxy_and_store: tuple[Proxy, Store], address: str
) -> None:
    proxy, store = proxy_and_store
    proxy.lose_request(b"evt_lost")
    old, lost = await store.claims.insert([make_claim("warm"), make_claim("evt_lost")])
    assert proxy.lost.is_set()
    assert (old.fresh, lost.fresh) == (False, True)
    assert run_sql(address, ROWS) == [("evt_lost", lost.receipt), ("warm", old.receipt)]


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "leave"])
async def test_claim_whose_connection_is_lost_has_the_receipts_of_all_its_consumers_once(
    proxy_and_store: tuple[Proxy, Store], address: str, fault: str
) -> None:
    proxy, store = proxy_and_store
    copies = tuple(ConsumerClaim(name, State.RECEIVED, None, None) for name in ("ledger", "search"))
    getattr(proxy, fault)(b"evt_lost")
    lost, other = await store.claims.insert(
        [make_claim("evt_lost", copies=copies), make_claim("evt_other", copies=copies)]
    )
    assert proxy.lost.is_set()
    assert (lost.fresh, other.fresh) == (True, True)
    receipts = run_sql(
        address, "SELECT event_id, consumer, coalesce(main_id, id) FROM webhook_receipts WHERE event_id <> 'warm'"
    )
    assert sorted(receipts) == [
        (event_id, consumer, claimed.receipt)
        for event_id, claimed in (("evt_lost", lost), ("evt_other", other))
        for consumer in ("ledger", "main", "search")
    ]
    assert not (await store.claims.insert([make_claim("evt_lost", copies=copies)]))[0].fresh
    assert run_sql(address, "SELECT count(*) FROM webhook_receipts WHERE event_id = 'evt_lost'") == [(3,)]


async def test_lost_reply_to_the_draw_of_ids_changes_no_claim(address: str) -> None:
    async with proxied(address) as (proxy, through):
        store = make_store(Settings(database=through))
        await store.open()
        proxy.lose_reply(b"nextval")
        assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh
        assert proxy.lost.is_set()
        assert len(run_sql(address, ROWS)) == 1
        await store.close()


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
async def test_store_waits_for_a_running_claim_whose_connection_died(
    proxy_and_store: tuple[Proxy, Store], address: str, ending: str
) -> None:
    """Another transaction holds the event id. The first INSERT waits for it, and goes on without its client."""
    proxy, store = proxy_and_store
    rival = await asyncpg.connect(address)
    await rival.execute("BEGIN")
    await rival.execute(
        "INSERT INTO webhook_receipts (id, source, provider, event_id, status, fingerprint) "
        "VALUES (nextval('webhook_receipt_ids'), 'stripe', 'stripe', 'evt_lost', 'received', sha256(''))"
    )
    proxy.leave(b"evt_lost")
    claiming = asyncio.create_task(store.claims.insert([make_claim("evt_lost"), make_claim("evt_new")]))
    await asyncio.wait_for(proxy.lost.wait(), 30)
    await until_waiting(address, 1)  # the first try, whose client is gone, or its repetition
    assert not claiming.done()
    await rival.execute(
        "INSERT INTO webhook_payloads (receipt_id, day, body, headers) "
        "SELECT id, (now() AT TIME ZONE 'UTC')::date, '', '{}' FROM webhook_receipts WHERE event_id = 'evt_lost'"
    )
    await rival.execute(ending)
    await rival.close()
    lost, new = await asyncio.wait_for(claiming, 10)
    assert lost.fresh == (ending == "ROLLBACK")
    assert new.fresh
    stored = dict(run_sql(address, ROWS))
    assert sorted(stored) == ["evt_lost", "evt_new", "warm"]
    assert (stored["evt_lost"], stored["evt_new"]) == (lost.receipt, new.receipt)


async def until_waiting(address: str, count: int) -> None:
    """Wait until this many sessions of the store wait for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'oncehook'"
    )

    async def is_waiting() -> bool:
        return bool((await asyncio.to_thread(run_sql, address, waiting))[0][0] >= count)

    await eventually(is_waiting, f"{count} sessions of the store wait for a lock")


@pytest.mark.parametrize("how", ["stall", "refuse"])
async def test_database_that_does_not_answer_is_unavailable_in_time_and_recovers(address: str, how: str) -> None:
    async with proxied(address) as (proxy, through):
        store = make_store(Settings(database=through, claim_timeout=1.0))
        await store.open()
        await store.claims.insert([make_claim("evt_1")])
        getattr(proxy, how)()
        started = time.monotonic()
        results = await asyncio.gather(
            store.claims.insert([make_claim("evt_2")]),
            store.claims.insert([make_claim("evt_3")]),
            store.ping(),
            return_exceptions=True,
        )
        assert all(isinstance(result, StoreUnavailable) for result in results), results
        assert time.monotonic() - started < 1 + 5  # claim_timeout, and a busy machine
        proxy.flow()
        proxy.accept()
        outcomes = await store.claims.insert([make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_4")])
        assert (outcomes[0].fresh, outcomes[2].fresh) == (False, True)  # evt_2 may have been recorded after all
        assert len([row for row in run_sql(address, ROWS) if row[0] == "evt_2"]) == 1
        await store.close()


async def test_store_closes_in_time_when_its_database_does_not_answer(address: str) -> None:
    async with proxied(address) as (proxy, through):
        store = make_store(Settings(database=through, claim_timeout=0.5))
        await store.open()
        claiming = asyncio.create_task(store.claims.insert([make_claim("evt_1")]))
        proxy.stall()
        with pytest.raises(StoreUnavailable):
            await claiming
        await asyncio.wait_for(store.close(), 10)


async def test_lease_without_a_reply_uses_no_attempt_and_is_released_at_once(address: str) -> None:
    async with proxied(address) as (proxy, through):
        inbox = Inbox(through, worker=False, lease="60s", poll="50ms", claim_timeout="4s")
        inbox.source("stripe", secrets=["whsec_test"])
        handled: list[str] = []

        @inbox.on("stripe", "*", retry=Retry(attempts=1))
        async def handle(event: Event) -> None:
            handled.append(event.id)

        async with inbox.lifespan():
            await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
            proxy.lose_answer(b"evt_1")
            inbox._runtime.start_worker()
            done = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed'"
            await eventually(lambda: run_sql(address, done) == [(2,)], "both events are processed")
            assert proxy.lost.is_set()
    assert sorted(handled) == ["evt_1", "evt_2"]
    assert run_sql(address, "SELECT DISTINCT attempts FROM webhook_receipts") == [(1,)]
    assert run_sql(address, "SELECT count(*) FROM webhook_past_attempts") == [(0,)]


LATE_LEASE = (
    "UPDATE webhook_receipts SET status = 'processing', attempts = 1, lease = lease + 1, worker = '{worker}', "
    "processed_at = NULL, leased_at = now(), lease_until = now() + interval '60 s'"
)
"""What a lease writes. It leases the receipt of the test, which is processed by then, so that nothing else does."""


async def test_lease_that_is_committed_after_its_connection_was_lost_uses_no_attempt(address: str) -> None:
    """The server goes on with the statement. It may commit when the worker has leased other receipts since."""
    async with proxied(address) as (proxy, through):
        inbox = Inbox(through, worker=False, lease="60s", poll="50ms", claim_timeout="4s")
        inbox.source("stripe", secrets=["whsec_test"])
        handled: list[int] = []

        @inbox.on("stripe", "*", retry=Retry(attempts=1))
        async def handle(event: Event) -> None:
            handled.append(event.attempt)

        async with inbox.lifespan():
            proxy.lose_request(b"RETURNING r.id, r.lease, r.attempts, r.source")
            inbox._runtime.start_worker()
            await asyncio.wait_for(proxy.lost.wait(), 30)
            await inbox._runtime.store.claims.insert([make_claim("evt_1")])
            await eventually(lambda: handled == [1], "the worker leases again")
            worker = inbox._runtime.store.process.worker
            run_sql(address, LATE_LEASE.format(worker=worker))
            await eventually(lambda: handled == [1, 1], "the receipt is released and handled")
    assert run_sql(address, "SELECT attempts, crashes FROM webhook_receipts") == [(1, 0)]
