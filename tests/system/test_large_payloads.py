"""Large bodies in a payload store: every way to read, replay, erase and prune an event works as for a small one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox
from oncehook.model.receipt import Filter
from oncehook.operations.forget import find_mentions, forget
from oncehook.operations.keys import rotate
from oncehook.operations.move_plan import plan_move
from oncehook.operations.move_source import SourceMove
from oncehook.operations.payload_objects import collect_objects
from oncehook.operations.payloads import read_payload
from oncehook.testing import advance, deliver, drain, prune, replay
from tests.support.aws import Moto
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET, Rows, stripe_body
from tests.support.payload_stores import KINDS, BucketStore, FolderStore, PayloadStore, large_body, large_inbox
from tests.support.servers import Postgres
from tests.support.shards import federation_of, post, shard_databases, stripe_sources
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> PayloadStore:
    """A payload store of each kind."""
    return _make_store(request, request.param, tmp_path)


@pytest.fixture
def payload_store(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> PayloadStore:
    """A payload store: of one kind with SQLite, and of the other kind with PostgreSQL."""
    return _make_store(request, "s3" if database.startswith("sqlite") else "directory", tmp_path)


def _make_store(request: pytest.FixtureRequest, kind: str, folder: Path) -> PayloadStore:
    if kind == "directory":
        return FolderStore(folder / "payloads")
    return BucketStore(request.getfixturevalue("aws"))


def record_bodies(inbox: Inbox) -> list[bytes]:
    """Register a handler that records the bodies of all events."""
    seen: list[bytes] = []

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        seen.append(event.raw)

    return seen


async def test_large_body_is_an_object_and_its_handler_gets_the_exact_bytes(
    make_inbox: Callable[..., Inbox], any_store: PayloadStore, rows: Rows
) -> None:
    inbox = large_inbox(make_inbox, any_store)
    seen = record_bodies(inbox)
    body = large_body("evt_1")
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        ((address, stored),) = any_store.objects().items()
        assert stored == body
        assert rows("SELECT length(body), object FROM webhook_payloads") == [(0, address)]
        assert rows("SELECT address, size, receipt_id FROM webhook_payload_objects") == [(address, len(body), 1)]
        (receipt,) = await drain(inbox)
        assert receipt.status == "processed" and seen == [body]
        payload, problem = await read_payload(inbox._runtime.store, receipt.receipt)
        assert problem is None and payload is not None and payload.body == body


async def test_small_body_stays_in_the_database(make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows) -> None:
    store = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, store)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).outcome == (202, "accepted")
    assert rows("SELECT object FROM webhook_payloads") == [(None,)] and not store.objects()
    assert rows("SELECT count(*) FROM webhook_payload_objects") == [(0,)]


async def test_forged_delivery_writes_no_object(make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows) -> None:
    store = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, store)
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", large_body("evt_1"), tampered=True)).status == 401
    assert not store.objects() and rows("SELECT count(*) FROM webhook_payload_objects") == [(0,)]


async def test_duplicate_of_a_large_event_writes_no_second_object(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    body = large_body("evt_1")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", body)
        assert (await deliver(inbox, "stripe", body)).outcome == (200, "duplicate")
        assert list(payload_store.objects().values()) == [body]


async def test_concurrent_duplicates_leave_objects_that_are_collected_and_the_event_stays_readable(
    make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows
) -> None:
    store = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, store)
    seen, body = record_bodies(inbox), large_body("evt_1")
    async with inbox.lifespan():
        responses = await asyncio.gather(*(deliver(inbox, "stripe", body) for _ in range(8)))
        assert sorted(response.status for response in responses) == [200] * 7 + [202]
        await prune(inbox)
        assert len(store.objects()) == rows("SELECT count(*) FROM webhook_payload_objects")[0][0], "none is lost"
        await advance(inbox, "25h")
        await prune(inbox)
        assert list(store.objects()) == [rows("SELECT object FROM webhook_payloads")[0][0]]
        await drain(inbox)
    assert seen == [body]


async def test_same_body_of_two_events_is_two_objects_and_pruning_one_keeps_the_other(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore, rows: Rows
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    inbox.source("billing", provider="stripe", secrets=[STRIPE_SECRET])
    seen, body = record_bodies(inbox), large_body("evt_1")

    async with inbox.lifespan():
        await deliver(inbox, "stripe", body)
        await drain(inbox)
        await advance(inbox, "60d")
        await deliver(inbox, "billing", body)
        assert len(payload_store.objects()) == 2
        await prune(inbox)
        assert list(payload_store.objects().values()) == [body], "only the object of the pruned event is deleted"
        assert rows("SELECT source FROM webhook_receipts") == [("billing",)]
        assert rows("SELECT count(*) FROM webhook_payload_objects") == [(1,)]
    assert seen == [body]


async def test_missing_object_fails_its_receipt_with_a_sentence_and_no_other(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    seen = record_bodies(inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", large_body("evt_1"))
        (address,) = payload_store.objects()
        payload_store.remove(address)
        await deliver(inbox, "stripe", large_body("evt_2"))
        await deliver(inbox, "stripe", stripe_body("evt_3"))
        first, second, third = await drain(inbox)
        assert first.status == "failed"
        assert first.last_error == f"it cannot be handled: its payload object {address} does not exist"
        assert (second.status, third.status) == ("processed", "processed") and len(seen) == 2
        payload, problem = await read_payload(inbox._runtime.store, first.receipt)
        assert payload is None and problem is not None and "does not exist" in problem
        rehearsal = await inbox._runtime.rehearse(first)
        assert rehearsal.error is not None and "does not exist" in rehearsal.error


async def test_damaged_object_never_reaches_a_handler(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    seen = record_bodies(inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", large_body("evt_1"))
        (address,) = payload_store.objects()
        payload_store.replace(address, large_body("evt_1", amount=1_000_000))
        (receipt,) = await drain(inbox)
        assert receipt.status == "failed" and seen == []
        assert receipt.last_error is not None and "is damaged" in receipt.last_error


async def test_replay_rehearsal_and_a_second_consumer_read_the_object(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    seen, body = record_bodies(inbox), large_body("evt_1")

    @inbox.on("stripe", "*", consumer="audit", batch=10)
    async def audit(events: list[Event]) -> None:
        seen.extend(event.raw for event in events)

    async with inbox.lifespan():
        await deliver(inbox, "stripe", body)
        receipts = await drain(inbox)
        assert seen == [body, body] and len(payload_store.objects()) == 1, "consumers share the payload"
        rehearsal = await inbox._runtime.rehearse(receipts[0])
        assert rehearsal.error is None and len(seen) == 3
        await replay(inbox, receipts[0].receipt)
        await drain(inbox)
        assert seen == [body] * 4


async def test_forgotten_event_loses_its_object_and_stays_a_duplicate(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore, rows: Rows
) -> None:
    inbox = large_inbox(make_inbox, payload_store)
    jane, mary = (large_body(f"evt_{name}", email=f"{name}@example.com") for name in ("jane", "mary"))
    async with inbox.lifespan():
        for body in (jane, mary):
            await deliver(inbox, "stripe", body)
        store = inbox._runtime.store
        found = [receipt async for receipt, matches in find_mentions(store, "jane@example.com") if matches]
        assert await forget(store, found, actor="me", address="jane@example.com") == 1
        assert list(payload_store.objects().values()) == [mary]
        assert rows("SELECT count(*) FROM webhook_payload_objects") == [(1,)]
        assert (await deliver(inbox, "stripe", jane)).outcome == (200, "duplicate")


async def test_encrypted_body_is_an_encrypted_object_and_rotation_writes_a_new_one(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore, rows: Rows
) -> None:
    body = large_body("evt_1")
    first = large_inbox(make_inbox, payload_store, keys=ring("2026a"))
    async with first.lifespan():
        await deliver(first, "stripe", body)
        (before,) = payload_store.objects()
        assert b"Zanzibar" not in payload_store.objects()[before]
    second = large_inbox(make_inbox, payload_store, keys=ring("2026b", "2026a"))
    seen = record_bodies(second)
    async with second.lifespan():
        store = second._runtime.store
        (leased,) = await store.leases.take(1, 30, "w")
        assert (await rotate(store)).removable == ["2026a"]
        await collect_objects(store)
        ((after, stored),) = payload_store.objects().items()
        assert after != before and b"Zanzibar" not in stored
        assert (await store.bodies.open_lease(leased)).body == body, "a lease from before the rotation is readable"
        await store.leases.release([leased.lease_key])
        assert rows("SELECT object, key_id FROM webhook_payloads") == [(after, "2026b")]
        await drain(second)
    assert seen == [body]


async def test_backfill_of_a_consumer_filters_by_the_body_in_the_object(
    make_inbox: Callable[..., Inbox], payload_store: PayloadStore
) -> None:
    first = large_inbox(make_inbox, payload_store)
    record_bodies(first)
    async with first.lifespan():
        for number in (1, 2):
            await deliver(first, "stripe", large_body(f"evt_{number}", amount=number))
        await drain(first)
    second = large_inbox(make_inbox, payload_store)
    seen: list[str] = []

    @second.on("stripe", "*", consumer="audit")
    async def audit(event: Event) -> None:
        seen.append(event.id)

    second.consumer("audit", where={"amount": 2})
    async with second.lifespan():
        await second.backfill("audit", since="1d")
        await drain(second)
    assert seen == ["evt_2"]


async def test_inline_source_stores_its_large_body_and_handles_it(
    make_inbox: Callable[..., Inbox], tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "payloads")
    inbox = make_inbox(payload_store=store.address, payload_threshold=1000, worker=True)
    inbox.source("stripe", secrets=[STRIPE_SECRET], mode="inline")
    seen, body = record_bodies(inbox), large_body("evt_1")
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", body)).outcome == (200, "processed")
    assert seen == [body] and list(store.objects().values()) == [body]


async def test_workers_that_are_fed_by_a_queue_read_the_object(
    make_inbox: Callable[..., Inbox], tmp_path: Path, rows: Rows, aws: Moto
) -> None:
    store = FolderStore(tmp_path / "payloads")
    inbox = large_inbox(make_inbox, store, worker=True, queue=f"sqs:{aws.queue()}")
    seen, body = record_bodies(inbox), large_body("evt_1")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", body)
        await eventually(receipts_are(rows, "processed", 1))
    assert seen == [body]


async def test_moved_source_keeps_its_objects_and_forgetting_deletes_them_in_its_shard(
    postgres: Postgres, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "payloads")
    top = f'payload_store = "{store.address}"\npayload_threshold = 1000'
    with shard_databases(postgres, tmp_path, "a") as databases:
        inbox = Inbox(config=databases.configuration(top=top, sources=stripe_sources("one"), a=""), worker=False)
        async with inbox.lifespan():
            assert await post(inbox, "one", "evt_1", note="x" * 5000) == 202
            ((address, body),) = store.objects().items()
            federation = federation_of(inbox)
            assert federation.main.shards is not None
            plan = await plan_move(federation.members, federation.routes, "one", "a")
            await SourceMove(federation.members, "one", plan, actor="test", wait=10.0).run()
            await federation.routes.load(federation.main.shards)
            for shard in federation.stores:
                await collect_objects(shard, unused=-10.0)
            assert store.objects() == {address: body}, "the old shard deletes no object of the new one"
            (event,) = await federation.receipts.find(Filter(), limit=10)
            payload = await federation.receipts.payload(event.receipt)
            assert payload is not None and payload.body == body
            assert await forget(federation, [event.receipt], actor="me") == 1
            assert not store.objects()
