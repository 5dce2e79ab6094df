"""One store over all shards: each method is answered by the shards that have the rows, and no event appears twice."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.config.settings import Settings
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import Filter
from oncehook.operations.keys import rotate
from oncehook.operations.selection import find_events
from oncehook.operations.work import read_work
from oncehook.store import make_store
from oncehook.store.federation import POLICIES, FederatedStore
from oncehook.store.rows import Selection
from tests.support.encryption import ring
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, federation_of, post, shard_databases, stripe_sources

pytestmark = pytest.mark.anyio


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a", "b") as made:
        yield made


@pytest.fixture
async def inbox(databases: ShardDatabases) -> AsyncIterator[Inbox]:
    """An inbox with six events: one by one to a source of `a`, of `b` and of `main`."""
    configuration = databases.configuration(
        sources=stripe_sources("one", "two", "three"), a='sources = ["one"]', b='sources = ["two"]'
    )
    inbox = Inbox(config=configuration, worker=False)
    async with inbox.lifespan():
        for number in range(2):
            for source in ("one", "two", "three"):
                assert await post(inbox, source, f"evt_{source}_{number}") == 202
        yield inbox


NEWEST_FIRST = [f"evt_{source}_{number}" for number in (1, 0) for source in ("three", "two", "one")]


async def ids(store: FederatedStore, *, limit: int | None = None, **conditions: str) -> list[str]:
    return [receipt.event_id async for receipt in find_events(store, Filter(**conditions), limit)]  # type: ignore[arg-type]


def test_every_policy_is_for_a_method_of_its_area(postgres: Postgres) -> None:
    store = make_store(Settings(database=postgres.url("none")))
    for area, policies in POLICIES.items():
        for name in policies:
            assert callable(getattr(getattr(store, area), name)), f"{area}.{name}"


async def test_lists_are_merged_by_time(inbox: Inbox) -> None:
    store = federation_of(inbox)
    assert await ids(store) == NEWEST_FIRST
    assert await ids(store, limit=4) == NEWEST_FIRST[:4]
    pages, before = [], None
    while page := await store.receipts.find(Filter(), limit=2, before=before):
        pages.append([receipt.event_id for receipt in page])
        before = page[-1].received_at.isoformat(), page[-1].receipt
    assert [event for page_ in pages for event in page_] == NEWEST_FIRST
    end = await store.receipts.window_end(Filter(), before=None, size=2)
    assert end is not None
    window = await store.receipts.find(Filter(), limit=10, down_to=end)
    assert [receipt.event_id for receipt in window] == NEWEST_FIRST[: len(window)]
    assert await store.receipts.sources() == ["one", "three", "two"]


async def test_receipt_is_found_by_its_number_in_any_shard(inbox: Inbox) -> None:
    store = federation_of(inbox)
    for receipt in await store.receipts.find(Filter(), limit=10):
        assert await store.receipts.get(receipt.receipt) == receipt
        payload = await store.receipts.payload(receipt.receipt)
        assert payload is not None and receipt.event_id.encode() in payload.body
        assert [row.receipt for row in await store.receipts.consumers_of(receipt)] == [receipt.receipt]
        assert await store.receipts.attempts(receipt.receipt) == []
        assert await store.receipts.duplicates(receipt.receipt) == []
        assert await store.effects.noops(receipt.receipt) == []
        assert [row.receipt for row in await store.receipts.by_event_id(receipt.event_id, limit=5)] == [receipt.receipt]
    assert await store.receipts.get(4711) is None


async def test_events_are_counted_in_all_shards(inbox: Inbox) -> None:
    store = federation_of(inbox)
    assert {(row.source, row.status): row.receipts for row in await store.stats.counts()} == {
        (source, "received"): 2 for source in ("one", "two", "three")
    }
    work, last = await read_work(store, 100)
    assert work.figures()["waiting"] == 6 and set(last) == {"one", "two", "three"}
    assert await store.effects.counts() == {} and sum((await store.effects.bounded_counts(5)).values()) == 0
    assert await store.effects.count_failed(EffectFilter()) == (0, 0)
    assert await store.effects.find(EffectFilter(), limit=5) == []
    assert len((await store.stats.change_token()).split("/")) > 3
    text = await inbox.metrics()
    for source in ("one", "two", "three"):
        assert f'oncehook_receipts{{consumer="main",source="{source}",state="received"}} 2.0'.encode() in text


async def test_operations_reach_the_shard_of_each_event(inbox: Inbox, databases: ShardDatabases) -> None:
    for shard in databases.addresses:
        run_sql(databases.addresses[shard], "UPDATE webhook_receipts SET status = 'failed', failed_at = now()")
    store = federation_of(inbox)
    selected = [row.receipt async for row in find_events(store, Filter())]
    page = await store.operations.select(Selection(), after=0, limit=4)
    assert [row.receipt for row, _ in page] == sorted(selected)[:4]
    assert sum(row.receipts for row in await store.operations.count(Selection())) == 6
    assert len(await store.stats.dead_letters(10)) == 3
    replayed = await inbox.replay(status="failed", actor="jane")
    assert replayed.count == 6 and await ids(store, status="received") == NEWEST_FIRST
    assert replayed.run is not None
    assert sum((await store.operations.run_outcomes(replayed.run)).values()) == 6
    assert len(await store.operations.replays(selected[0])) == 1
    assert len(await store.operations.audited(before=None, limit=50)) == 3  # one in each shard


async def test_pause_holds_in_all_shards(inbox: Inbox, databases: ShardDatabases) -> None:
    store = federation_of(inbox)
    assert await inbox.pause("one", reason="a deploy")
    assert [row.source for row in await store.pauses.active()] == ["one"]
    assert databases.rows("a", "SELECT source FROM webhook_pauses") == [("one",)]
    assert await inbox.resume("one") and not await inbox.resume("one")


async def test_rows_of_a_source_that_lives_elsewhere_are_not_shown(inbox: Inbox) -> None:
    store = federation_of(inbox)
    store.routes.moved = {"one": "b"}
    store.routes._found.clear()
    assert await ids(store) == [event for event in NEWEST_FIRST if "one" not in event]
    assert await ids(store, limit=3) == ["evt_three_1", "evt_two_1", "evt_three_0"]
    assert {row.source for row in await store.stats.counts()} == {"two", "three"}
    assert (await inbox.replay(source="one", since="1h")).count == 0


async def test_page_is_filled_up_behind_rows_of_a_source_that_lives_elsewhere(
    databases: ShardDatabases,
) -> None:
    inbox = Inbox(config=databases.configuration(sources=stripe_sources("one", "two")), worker=False)
    async with inbox.lifespan():
        for number in range(3):
            assert await post(inbox, "one", f"evt_one_{number}") == 202
        assert await post(inbox, "two", "evt_two") == 202
        store = federation_of(inbox)
        store.routes.moved = {"one": "a"}
        store.routes._found.clear()
        page = await store.operations.select(Selection(), after=0, limit=2)
        assert [receipt.event_id for receipt, _ in page] == ["evt_two"]


async def test_shard_that_is_down_is_left_out(inbox: Inbox) -> None:
    store = federation_of(inbox)
    await store.members["a"].close()
    assert await ids(store) == [event for event in NEWEST_FIRST if "one" not in event]
    assert list(store.missing) == ["a"]
    await store.members["a"].open()
    assert await ids(store) == NEWEST_FIRST and not store.missing


async def test_rotation_goes_through_all_pages_of_all_shards(
    databases: ShardDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.store.encrypted_rows.PAGE", 1)

    def make(*keys: str) -> Inbox:
        top, sources = f"keys = {ring(*keys)}", stripe_sources("one", "two", "three", extra="encrypt = true")
        shards = {"a": 'sources = ["one"]', "b": 'sources = ["two"]'}
        return Inbox(config=databases.configuration(top=top, sources=sources, **shards), worker=False)

    async with (before := make("2026a")).lifespan():
        for source in ("one", "two", "three"):
            for number in range(2):
                assert await post(before, source, f"evt_{number}") == 202
    async with (after := make("2026b", "2026a")).lifespan():
        done = await rotate(federation_of(after))
    assert (done.resealed, done.removable) == (6, ["2026a"])
    for shard in databases.addresses:
        assert databases.rows(shard, "SELECT key_id FROM webhook_payloads") == [("2026b",)] * 2


async def test_payloads_are_pruned_and_forgotten_in_all_shards(inbox: Inbox, databases: ShardDatabases) -> None:
    store = federation_of(inbox)
    assert [one.dialect.name for one in store.stores] == ["postgres"] * 3
    for number in await store.retention.with_object("in_1"):
        assert await store.retention.erase([number], None, "jane", "{}") == 1
    assert await store.retention.payloads(0, 10) == []
    for shard in databases.addresses.values():
        run_sql(shard, "UPDATE webhook_receipts SET status = 'processed', processed_at = now()")
    for one in store.stores:
        await one.schema.move_times_back(90 * 86400)
    pruned = await inbox.prune()
    assert pruned is not None and dict(pruned.receipts) == {"one": 2, "two": 2, "three": 2}
