"""The rotation over serial keys, without a database."""

from datetime import UTC, datetime

from oncehook.model.lease import Leased
from oncehook.store.serial import MAX_KEYS, REFRESH_SECONDS, START, KeyRotation, keys_json
from tests.support.clocks import ManualClock


def leased(key: str, source: str = "stripe") -> Leased:
    return Leased(
        source=source, provider="stripe", event_id=key, type="invoice.paid", object_id=None, delivery_id=None,
        occurred_at=None, correlation_id=None, receipt=1, lease=1, attempt=1, received_at=datetime.now(UTC),
        replays=0, body=b"", headers="{}", object=None, serial_key=key,
    )  # fmt: skip


def test_share_is_half_of_the_limit() -> None:
    rotation = KeyRotation(ManualClock())
    assert rotation.share(10) == 5


def test_share_of_a_limit_of_one_alternates() -> None:
    rotation = KeyRotation(ManualClock())
    assert [rotation.share(1) for _ in range(4)] == [1, 0, 1, 0]


def test_store_without_keys_skips_them_until_the_next_check() -> None:
    clock = ManualClock()
    rotation = KeyRotation(clock)
    rotation.begin().advance([], 16, [], 10)
    assert rotation.share(10) == 0
    clock.advance(REFRESH_SECONDS)
    assert rotation.share(10) == 5


def test_store_with_keys_keeps_sharing() -> None:
    rotation = KeyRotation(ManualClock())
    rotation.begin().advance([("stripe", "a")], 16, [], 10)
    assert rotation.share(10) == 5


def test_scan_from_the_start_ends_at_the_last_key() -> None:
    rotation = KeyRotation(ManualClock())
    scan = rotation.begin()
    scan.advance([("stripe", "a")], scan.batch_size(10), [], 10)
    assert not scan.is_unfinished(10) and rotation.after == START


def test_scan_from_the_middle_wraps_around_once() -> None:
    rotation = KeyRotation(ManualClock())
    rotation.after = ("stripe", "m")
    scan = rotation.begin()
    scan.advance([("stripe", "z")], 16, [], 10)
    assert scan.is_unfinished(10) and rotation.after == START
    scan.advance([("stripe", "a")], 16, [], 10)
    assert not scan.is_unfinished(10)


def test_scan_continues_behind_a_full_batch() -> None:
    rotation = KeyRotation(ManualClock())
    scan = rotation.begin()
    keys = [("stripe", f"k{n:02}") for n in range(16)]
    scan.advance(keys, len(keys), [], 10)
    assert scan.is_unfinished(10) and rotation.after == ("stripe", "k15")


def test_next_scan_begins_behind_the_last_leased_key() -> None:
    rotation = KeyRotation(ManualClock())
    scan = rotation.begin()
    scan.advance([("stripe", "a"), ("stripe", "b"), ("stripe", "c")], 18, [leased("a"), leased("b")], 2)
    assert not scan.is_unfinished(2) and rotation.after == ("stripe", "b")
    assert [receipt.serial_key for receipt in scan.leased] == ["a", "b"]


def test_scan_visits_a_limited_number_of_keys() -> None:
    rotation = KeyRotation(ManualClock())
    scan = rotation.begin()
    visited = 0
    while scan.is_unfinished(500):
        keys = [("stripe", f"{visited + n:05}") for n in range(scan.batch_size(500))]
        scan.advance(keys, len(keys), [], 500)
        visited += len(keys)
    assert MAX_KEYS <= visited < 2 * MAX_KEYS + 16


def test_keys_of_paused_sources_are_left_out() -> None:
    keys = [("stripe", "a"), ("github", "b")]
    assert keys_json(keys, lambda source: source == "github") == '[{"source": "github", "key": "b"}]'
