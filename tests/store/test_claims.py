"""What every store must do with claims and duplicates: one suite, run on each."""

import asyncio
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Duplicate
from oncehook.model.errors import RowRefused, StoreUnavailable
from oncehook.model.receipt import StoredPayload
from oncehook.model.rows import DuplicateCount
from oncehook.model.states import State
from oncehook.store import make_store
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.store.store import Store
from tests.support.events import NO_STATE, Rows, make_claim

pytestmark = pytest.mark.anyio

COUNT = "SELECT count(*) FROM webhook_receipts"


async def claim_one(store: Store, claim: Claim) -> int:
    (claimed,) = await store.claims.insert([claim])
    assert claimed.fresh
    return claimed.receipt


# -- claim ----------------------------------------------------------------------------------------------------------


async def test_a_first_claim_is_fresh_and_leaves_one_row_with_its_payload(store: Store, rows: Rows) -> None:
    occurred = datetime(2026, 11, 15, 3, 4, 5, 678901, tzinfo=UTC)
    claim = make_claim("evt_1", occurred_at=occurred, delivery_id="d_1", correlation_id="c_1", object_id="in_9")
    (claimed,) = await store.claims.insert([claim])
    assert (claimed.fresh, claimed.status, claimed.same_body) == (True, State.RECEIVED, True)
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None
    assert (receipt.source, receipt.provider, receipt.event_id) == ("stripe", "stripe", "evt_1")
    assert (receipt.type, receipt.object_id, receipt.delivery_id) == ("invoice.paid", "in_9", "d_1")
    assert (receipt.occurred_at, receipt.correlation_id, receipt.status) == (occurred, "c_1", State.RECEIVED)
    assert (receipt.attempts, receipt.duplicates, receipt.replays, receipt.last_error) == (0, 0, 0, None)
    assert abs((datetime.now(UTC) - receipt.received_at).total_seconds()) < 60
    assert await store.receipts.payload(claimed.receipt) == StoredPayload(
        claim.body, {"content-type": "application/json"}
    )
    assert rows(COUNT) == [(1,)]


async def test_a_second_claim_is_a_duplicate_of_the_first_and_changes_nothing(store: Store, rows: Rows) -> None:
    receipt = await claim_one(store, make_claim("evt_1", status=State.IGNORED))
    before = rows("SELECT * FROM webhook_receipts"), rows("SELECT * FROM webhook_payloads")
    (again,) = await store.claims.insert([make_claim("evt_1")])
    assert (again.receipt, again.fresh, again.status, again.same_body) == (receipt, False, State.IGNORED, True)
    assert (rows("SELECT * FROM webhook_receipts"), rows("SELECT * FROM webhook_payloads")) == before


async def test_the_same_id_with_another_body_is_flagged_and_the_first_body_stays(store: Store) -> None:
    receipt = await claim_one(store, make_claim("evt_1", body=b"first"))
    (other,) = await store.claims.insert([make_claim("evt_1", body=b"second")])
    assert (other.receipt, other.fresh, other.same_body) == (receipt, False, False)
    payload = await store.receipts.payload(receipt)
    assert payload is not None and payload.body == b"first"


async def test_the_same_id_in_two_sources_is_two_receipts(store: Store, rows: Rows) -> None:
    one, two = await store.claims.insert([make_claim("evt_1", source="live"), make_claim("evt_1", source="test")])
    assert one.fresh and two.fresh and one.receipt != two.receipt
    assert rows(COUNT) == [(2,)]


@pytest.mark.parametrize("size", [3, 70, 700])
async def test_results_come_in_the_order_of_their_claims(store: Store, size: int) -> None:
    known = [make_claim(f"evt_{n}") for n in range(1, size, 3)]
    receipts = {c.event_id: o.receipt for c, o in zip(known, await store.claims.insert(known), strict=True)}
    batch = [make_claim(f"evt_{n}", body=b"%d" % n) for n in range(size)]
    outcomes = await store.claims.insert(batch)
    assert [o.fresh for o in outcomes] == [c.event_id not in receipts for c in batch]
    assert [o.same_body for o in outcomes] == [c.event_id not in receipts for c in batch]
    for claim, outcome in zip(batch, outcomes, strict=True):
        found = await store.receipts.get(outcome.receipt) if size < 100 else None
        assert found is None or found.event_id == claim.event_id
        assert outcome.receipt == receipts.get(claim.event_id, outcome.receipt)
    assert len({o.receipt for o in outcomes}) == size


async def test_every_payload_of_a_batch_stays_with_its_own_receipt(store: Store, rows: Rows) -> None:
    batch = [make_claim(f"evt_{n}", body=b"body of evt_%d" % n) for n in range(300)]
    await store.claims.insert(batch[::2])
    await store.claims.insert(batch)
    stored = rows("SELECT r.event_id, p.body FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = r.id")
    assert dict(stored) == {claim.event_id: claim.body for claim in batch}


async def test_what_one_event_lacks_and_its_neighbour_has_is_kept_for_each(store: Store) -> None:
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    nothing = {"type": None, "object_id": None, "delivery_id": None, "correlation_id": None, "occurred_at": None}
    everything = {"type": "t", "object_id": "o", "delivery_id": "", "correlation_id": "c", "occurred_at": moment}
    offered = [nothing, everything, nothing | {"delivery_id": "d"}, everything | {"object_id": None}]
    for number, batch in enumerate((offered, [nothing], [everything], [nothing, nothing | {"delivery_id": ""}])):
        claims = [make_claim(f"{number}-{place}", **facts) for place, facts in enumerate(batch)]
        for claim, claimed in zip(claims, await store.claims.insert(claims), strict=True):
            receipt = await store.receipts.get(claimed.receipt)
            assert receipt is not None and claimed.fresh
            assert {name: getattr(receipt, name) for name in nothing} == {n: getattr(claim, n) for n in nothing}


@pytest.mark.parametrize("year", [1, 13, 99, 999, 1969, 2026, 9999])  # 1 is what Go writes for "no time"
async def test_a_time_of_any_year_comes_back_as_it_was(store: Store, year: int) -> None:
    moment = datetime(year, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    (claimed,) = await store.claims.insert([make_claim(occurred_at=moment)])
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None and receipt.occurred_at == moment
    assert receipt.as_json()["occurred_at"] == f"{year:04}-01-01T23:59:59.999999Z"


BODIES = {
    "empty": b"",
    "with NULs": b'{"a":"\x00"}\x00',
    "no UTF-8": bytes(range(256)),
    "1 MiB": bytes(range(256)) * 4096,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_body_comes_back_byte_for_byte(store: Store, body: bytes) -> None:
    payload = await store.receipts.payload(await claim_one(store, make_claim(body=body)))
    assert payload is not None and payload.body == body


async def test_ids_of_255_bytes_are_taken_and_told_apart_by_their_last_byte(store: Store, rows: Rows) -> None:
    for stem in ("a" * 254, "é" * 127):
        one, two = await store.claims.insert([make_claim(stem + "1", source="s" * 63), make_claim(stem + "2")])
        assert one.fresh and two.fresh
    assert rows("SELECT max(length(event_id)) FROM webhook_receipts") == [(255,)]


async def test_ids_are_compared_byte_by_byte(store: Store) -> None:
    ids = ["Evt", "evt", "evt ", " evt", "evt\t", "evt\n", "ＥＶＴ", "évt", unicodedata.normalize("NFD", "évt"), "ⓔvt"]
    outcomes = await store.claims.insert([make_claim(id) for id in ids])
    assert all(o.fresh for o in outcomes)
    again = await store.claims.insert([make_claim(id) for id in reversed(ids)])
    assert [o.receipt for o in again] == [o.receipt for o in reversed(outcomes)]


async def test_concurrent_claims_of_one_id_have_one_winner(store: Store, rows: Rows) -> None:
    outcomes = await asyncio.gather(*(store.claims.insert([make_claim("evt_1")]) for _ in range(8)))
    assert sorted(o.fresh for (o,) in outcomes) == [False] * 7 + [True]
    assert len({o.receipt for (o,) in outcomes}) == 1
    assert rows(COUNT) == [(1,)]


# -- rows that are refused ------------------------------------------------------------------------------------------

POISON = {
    "a status that is none": {"status": NO_STATE},
    "an id of 256 bytes": {"event_id": "x" * 256},
    "an empty id": {"event_id": ""},
    "a lone surrogate": {"event_id": "\ud800"},
    "an empty source": {"source": ""},
}


@pytest.mark.parametrize("change", POISON.values(), ids=POISON.keys())
async def test_a_poison_row_is_refused_and_leaves_nothing_behind(
    store: Store, rows: Rows, change: dict[str, object]
) -> None:
    poison = replace(make_claim("evt_2"), **change)
    with pytest.raises(RowRefused) as refusal:
        await store.claims.insert([make_claim("evt_1"), poison, make_claim("evt_3")])
    assert "evt_" not in str(refusal.value)
    assert rows(COUNT) == [(0,)]
    assert (await store.claims.insert([make_claim("evt_1")]))[0].fresh


# -- duplicates -----------------------------------------------------------------------------------------------------


async def test_duplicates_are_noted_in_order_and_counted_on_the_receipt(store: Store) -> None:
    receipt = await claim_one(store, make_claim())
    await store.claims.note_duplicates([Duplicate(receipt, "d_2", b"f", True), Duplicate(receipt, None, b"g", False)])
    await store.claims.note_duplicates([Duplicate(receipt, "d_4", b"f", True)])
    noted = await store.receipts.duplicates(receipt)
    assert [(d.delivery_id, d.same_body) for d in noted] == [("d_2", True), (None, False), ("d_4", True)]
    assert all(d.received_at.endswith("Z") for d in noted)
    found = await store.receipts.get(receipt)
    assert found is not None and found.duplicates == 3


async def test_a_duplicate_of_a_receipt_that_was_pruned_meanwhile_leaves_nothing(store: Store, rows: Rows) -> None:
    receipt = await claim_one(store, make_claim())
    await store.claims.note_duplicates([Duplicate(receipt + 1, None, b"f", True), Duplicate(receipt, None, b"f", True)])
    assert rows("SELECT receipt_id FROM webhook_deliveries") == [(receipt,)]


@pytest.mark.parametrize("batch", [1, 37, 500])
async def test_of_each_kind_of_duplicate_a_hundred_are_kept_per_receipt(store: Store, rows: Rows, batch: int) -> None:
    receipt = await claim_one(store, make_claim("evt_1"))
    other = await claim_one(store, make_claim("evt_2"))
    flood = [Duplicate(receipt, None, b"f", n % 2 == 0) for n in range(2 * MAX_DUPLICATES + 20)]
    for start in range(0, len(flood), batch):
        await store.claims.note_duplicates(flood[start : start + batch])
    await store.claims.note_duplicates([Duplicate(other, None, b"f", True)])
    kept = "SELECT receipt_id, same_body, count(*) FROM webhook_deliveries GROUP BY 1, 2 ORDER BY 1, 2"
    assert rows(kept) == [(receipt, False, MAX_DUPLICATES), (receipt, True, MAX_DUPLICATES), (other, True, 1)]
    assert MAX_DUPLICATES == 100


# -- looking --------------------------------------------------------------------------------------------------------


async def test_what_is_not_there_is_none(store: Store) -> None:
    assert await store.receipts.get(12345) is None
    assert await store.receipts.payload(12345) is None
    assert await store.receipts.duplicates(12345) == []


async def test_counts_are_by_source_and_status(store: Store) -> None:
    assert await store.stats.counts() == []
    one, *_ = await store.claims.insert(
        [make_claim("1"), make_claim("2"), make_claim("3", status=State.FAILED), make_claim("4", source="github")]
    )
    await store.claims.note_duplicates([Duplicate(one.receipt, None, b"f", same) for same in (True, False, True)])
    counts = await store.stats.counts()
    by_status = {(c.source, c.status): c.receipts for c in counts}
    assert by_status == {("stripe", "received"): 2, ("stripe", "failed"): 1, ("github", "received"): 1}
    assert await store.stats.duplicate_counts() == [DuplicateCount("stripe", 3, 1)]


# -- reachable or not -----------------------------------------------------------------------------------------------


async def test_a_ping_answers_while_a_claim_could_be_committed(store: Store) -> None:
    await store.ping()


@pytest.mark.without_schema
@pytest.mark.parametrize("verb", ["ping", "claim", "note_duplicates", "get", "counts"])
async def test_a_store_that_is_closed_or_never_opened_is_unavailable(database: str, verb: str) -> None:
    store = make_store(Settings(database=database))
    calls = {
        "ping": store.ping,
        "claim": lambda: store.claims.insert([make_claim()]),
        "note_duplicates": lambda: store.claims.note_duplicates([Duplicate(1, None, b"f", True)]),
        "get": lambda: store.receipts.get(1),
        "counts": store.stats.counts,
    }
    with pytest.raises(StoreUnavailable):
        await calls[verb]()
    await store.open()
    await store.ping()
    await store.close()
    await store.close()
    if verb in ("ping", "claim", "note_duplicates"):
        with pytest.raises(StoreUnavailable):
            await calls[verb]()


FORK = """
import asyncio, os, sys
from oncehook.model.errors import StoreUnavailable
from oncehook.config.settings import Settings
from oncehook.store import make_store
from tests.support.events import make_claim

async def main():
    store = make_store(Settings(database=sys.argv[1]))
    await store.open()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(store.claims.insert([make_claim()]))  # a loop does not survive a fork either
        except StoreUnavailable as error:
            os._exit(42 if "fork" in str(error) else 1)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert (await store.claims.insert([make_claim()]))[0].fresh
    await store.close()
    return os.waitstatus_to_exitcode(status)

sys.exit(asyncio.run(main()))
"""


def test_a_store_opened_before_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(database: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, database], capture_output=True, text=True, timeout=30)
    assert done.returncode == 42, done.stderr
