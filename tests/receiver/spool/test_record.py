"""Records of the spool: cut off at any byte, or damaged anywhere, all others are read."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.model.claim import Claim, ConsumerClaim
from oncehook.model.states import State
from oncehook.receiver.spool.record import MAGIC, MARK, count_events, encode, read
from tests.support.events import make_claim

FIRST = [make_claim("evt_1", body=b"\x00\xff" + MARK), make_claim("evt_2")]
SECOND = [make_claim("evt_3")]
THIRD = [make_claim("evt_4")]
SEGMENT = MAGIC + encode(FIRST) + encode(SECOND) + encode(THIRD)
ENDS = [len(MAGIC), *(len(MAGIC + b"".join(map(encode, (FIRST, SECOND, THIRD)[:n]))) for n in (1, 2, 3))]


def test_every_field_of_a_claim_is_read_as_it_was_written() -> None:
    claim = make_claim(
        "évt\ud83d",
        tenant="acme",
        object_id=None,
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        status=State.IGNORED,
        last_error="left out",
        body=bytes(range(256)),
        serial_key="k",
        key_id="key_1",
        keys=("a", "b"),
        copies=(ConsumerClaim("billing", State.IGNORED, "no", "s"),),
    )
    claim = Claim(**{name: getattr(claim, name) for name in claim.__struct_fields__} | {"event_id": "évt"})
    assert read(MAGIC + encode([claim])).deliveries == [[claim]]


def test_segment_that_was_cut_at_any_byte_has_the_complete_records_before() -> None:
    for length in range(len(SEGMENT) + 1):
        contents = read(SEGMENT[:length])
        complete = sum(end <= length for end in ENDS[1:])
        assert contents.deliveries == [FIRST, SECOND, THIRD][:complete], f"cut after {length} bytes"
        assert contents.damaged == 0
        is_torn = length >= len(MAGIC) and length not in ENDS
        assert bool(contents.torn) == (is_torn or 0 < length < len(MAGIC))
        assert count_events(SEGMENT[:length]) == sum(map(len, contents.deliveries))


@given(st.integers(len(MAGIC), len(SEGMENT) - 1), st.integers(1, 255))
def test_record_with_a_changed_byte_is_left_out_and_the_others_are_read(position: int, change: int) -> None:
    data = bytearray(SEGMENT)
    data[position] ^= change
    damaged = sum(end <= position for end in ENDS[1:])
    contents = read(bytes(data))
    assert contents.deliveries == [claims for n, claims in enumerate((FIRST, SECOND, THIRD)) if n != damaged]
    assert contents.damaged > 0 if damaged < 2 else contents.torn > 0


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert read(data).deliveries == []
    assert read(MAGIC + data).deliveries == []


def test_zeros_after_the_last_record_are_a_torn_end() -> None:
    """After a power loss, a file system may have extended a file without its data."""
    contents = read(SEGMENT + bytes(4096))
    assert (contents.deliveries, contents.torn) == ([FIRST, SECOND, THIRD], 4096)


@pytest.mark.parametrize("data", [b"", MAGIC])
def test_empty_segment_has_nothing(data: bytes) -> None:
    contents = read(data)
    assert (contents.deliveries, contents.damaged, contents.torn) == ([], 0, 0)
