"""Claims on SQLite: statements of many rows, dead letters, and the limit of recorded duplicates."""

from dataclasses import replace

import pytest

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.claim import Claimed, Duplicate
from oncehook.model.errors import StoreUnavailable
from oncehook.model.states import State
from oncehook.store.rows import MAX_DUPLICATES
from oncehook.store.sqlite.claims import ROWS_AT_ONCE, _with_rows
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim

pytestmark = pytest.mark.anyio


def test_insert_has_placeholders_for_its_rows() -> None:
    assert _with_rows("INSERT INTO t VALUES :rows", 2, 3) == "INSERT INTO t VALUES (?, ?, ?), (?, ?, ?)"


@pytest.mark.parametrize("count", [1, 3, 5, 17, 341])
async def test_batch_of_any_size_is_stored_completely(store: Store, rows: Rows, count: int) -> None:
    claimed = await store.claims.insert([make_claim(f"evt_{n:03}") for n in range(count)])
    assert [outcome.fresh for outcome in claimed] == [True] * count
    assert rows("SELECT count(*) FROM webhook_receipts") == rows("SELECT count(*) FROM webhook_payloads") == [(count,)]


async def test_receipt_ids_are_consecutive_in_the_order_of_the_claims(store: Store) -> None:
    claimed = await store.claims.insert([make_claim(name) for name in ("b", "a", "c")])
    assert [outcome.receipt for outcome in claimed] == [1, 2, 3]


async def test_receipt_ids_do_not_follow_those_of_another_table(store: Store, rows: Rows) -> None:
    """An incident may be older than the first event."""
    for number in range(3):
        rows(f"INSERT INTO webhook_alerts (incident_id, target, word) VALUES ({number}, 'ops', 'opened')")
    for number in range(1, 6):
        (claimed,) = await store.claims.insert([make_claim(f"evt_{number}")])
        assert (claimed.receipt, claimed.fresh) == (number, True)


async def test_claim_that_waited_too_long_for_the_writer_is_not_stored(store: Store, rows: Rows) -> None:
    store.settings = replace(store.settings, claim_timeout=-1.0)
    with pytest.raises(StoreUnavailable, match="busy for too long"):
        await store.claims.insert([make_claim("evt_1")])
    assert rows("SELECT * FROM webhook_receipts") == []


async def test_claim_waits_for_the_writer_for_half_of_the_claim_timeout(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def claim_in_time(connection: object, claims: object, latest: float) -> list[Claimed]:
        waits.append(latest - SYSTEM.monotonic())
        return []

    monkeypatch.setattr(store.claims, "_claim_in_time", claim_in_time)
    await store.claims.insert([make_claim("evt_1")])
    half = store.settings.claim_timeout / 2
    assert 0.8 * half < waits[0] <= half


async def test_event_that_is_claimed_as_a_dead_letter_failed_when_it_arrived(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", status=State.FAILED), make_claim("evt_2")])
    assert rows("SELECT event_id, failed_at = received_at FROM webhook_receipts ORDER BY id") == [
        ("evt_1", 1),
        ("evt_2", None),
    ]


async def test_duplicates_are_recorded_up_to_the_limit_of_each_kind(store: Store, rows: Rows) -> None:
    (claimed,) = await store.claims.insert([make_claim("evt_1", fingerprint=b"f")])
    for body in (b"f", b"g"):
        flood = [Duplicate(claimed.receipt, None, body, body == b"f")] * (MAX_DUPLICATES + 1)
        await store.claims.note_duplicates(flood)
    counts = "SELECT same_body, count(*) FROM webhook_deliveries GROUP BY same_body ORDER BY same_body"
    assert rows(counts) == [(0, MAX_DUPLICATES), (1, MAX_DUPLICATES)]


def test_insert_sizes_end_with_one_row() -> None:
    assert ROWS_AT_ONCE[-1] == 1 and list(ROWS_AT_ONCE) == sorted(ROWS_AT_ONCE, reverse=True)
