"""Which receipts are remembered, for how long, and in how much memory."""

import tracemalloc

import pytest

from oncehook.model.claim import Claimed
from oncehook.model.states import State
from oncehook.receiver.fast_path.entries import ENTRY_BYTES, TTL, Entry, RememberedReceipts, entry_of, key_of
from oncehook.store.fast_path import FastPathState
from tests.support.clocks import ManualClock
from tests.support.events import make_claim

STATE = FastPathState(b"secret", b"namespace", 0)
ENTRY = Entry(7, b"f" * 32)


def remembered(limit: int = 2**20, clock: ManualClock | None = None) -> RememberedReceipts:
    return RememberedReceipts(limit, STATE, clock or ManualClock())


@pytest.mark.parametrize(
    ("fresh", "status", "keys", "is_remembered"),
    [
        (True, State.RECEIVED, (), True),
        (True, State.IGNORED, (), True),
        (True, State.RECEIVED, ("token",), True),
        (True, State.PROCESSING, (), False),  # inline: its handler has not run yet
        (False, State.PROCESSED, (), True),
        (False, State.FAILED, (), True),
        (False, State.PROCESSING, (), False),
        (False, State.RETRYING, (), False),  # inline: the redelivery is the next attempt
        (False, State.PROCESSED, ("token",), False),  # the receipt may be that of another event id
    ],
)
def test_only_receipts_that_every_later_delivery_duplicates_are_remembered(
    fresh: bool, status: State, keys: tuple[str, ...], is_remembered: bool
) -> None:
    claim = make_claim(keys=keys)
    assert (entry_of(claim, Claimed(7, fresh, status, b"f" * 32)) is not None) == is_remembered


def test_event_in_the_spool_is_not_remembered() -> None:
    assert entry_of(make_claim(), Claimed(0, True, State.RECEIVED, b"f" * 32)) is None


def test_delivery_is_found_only_if_all_its_events_are_remembered() -> None:
    receipts = remembered()
    first, second = make_claim("evt_1"), make_claim("evt_2")
    receipts.put(key_of(first), ENTRY)
    assert receipts.find([first]) == [ENTRY]
    assert receipts.find([first, second]) is None
    assert receipts.find([]) is None


@pytest.mark.parametrize("changes", [{"source": "other"}, {"tenant": "acme"}, {"event_id": "evt_2"}])
def test_other_source_tenant_or_id_is_another_event(changes: dict[str, str]) -> None:
    receipts = remembered()
    receipts.put(key_of(make_claim()), ENTRY)
    assert receipts.find([make_claim(**changes)]) is None


def test_entry_ends_after_an_hour_even_if_it_is_used() -> None:
    clock = ManualClock()
    receipts = remembered(clock=clock)
    receipts.put(key_of(make_claim()), ENTRY)
    clock.advance(TTL - 1)
    assert receipts.find([make_claim()]) == [ENTRY]
    clock.advance(1)
    assert receipts.find([make_claim()]) is None
    assert receipts.bytes == 0


def test_least_recently_used_entries_go_first() -> None:
    receipts = remembered(limit=3 * ENTRY_BYTES)
    claims = [make_claim(f"evt_{n}") for n in range(3)]
    receipts.put(key_of(claims[0]), ENTRY)
    receipts.put(key_of(claims[1]), ENTRY)
    receipts.find([claims[0]])
    receipts.put(key_of(claims[2]), ENTRY)
    assert [receipts.find([claim]) is not None for claim in claims] == [True, False, True]


def test_memory_stays_within_the_limit() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        receipts = remembered(limit=2**20)
        for number in range(20_000):
            claim = make_claim(f"evt_{number}_of_a_sender_with_long_identifiers")
            receipts.put(key_of(claim), Entry(10**9 + number, claim.fingerprint))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1_000 < len(receipts) < 3_000
    assert after - before < 1.1 * 2**20, f"{after - before} bytes"


def test_new_namespace_ends_all_entries_and_a_deletion_does_not() -> None:
    receipts = remembered()
    receipts.put(key_of(make_claim()), ENTRY)
    assert not receipts.use(FastPathState(b"secret", b"namespace", 3))
    assert receipts.find([make_claim()]) == [ENTRY]
    assert receipts.use(FastPathState(b"secret", b"another", 3))
    assert (len(receipts), receipts.bytes) == (0, 0)
