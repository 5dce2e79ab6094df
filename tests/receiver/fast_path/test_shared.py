"""A value from a shared cache counts only if a process of the same database wrote it for the same event."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.receiver.fast_path.entries import TTL, Entry
from oncehook.receiver.fast_path.shared import SharedReceipts, decode, encode, key_of
from oncehook.store.fast_path import FastPathState
from tests.support.events import make_claim
from tests.support.waiting import next_turn

pytestmark = pytest.mark.anyio

STATE = FastPathState(b"s" * 64, b"namespace", 0)
ENTRY = Entry(2**40, b"f" * 32)
KEY = key_of(make_claim(), STATE)
VALUE = encode(KEY, ENTRY, STATE)


class Memory:
    """A cache in memory that records the size of each request."""

    def __init__(self) -> None:
        self.is_available = True
        self.stored: dict[bytes, bytes] = {}
        self.sizes: list[int] = []

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.sizes.append(len(keys))
        await next_turn()
        return [self.stored.get(key) for key in keys]

    async def put(self, values: Mapping[bytes, bytes], seconds: int) -> None:
        assert seconds == TTL
        self.stored |= values


def test_value_is_read_as_it_was_written() -> None:
    assert decode(KEY, VALUE, STATE) == ENTRY


def test_neither_key_nor_value_contains_what_a_sender_sent() -> None:
    claim = make_claim("evt_secret", source="stripe_source", tenant="tenant_name")
    key = key_of(claim, STATE)
    for text in (b"evt_secret", b"stripe_source", b"tenant_name"):
        assert text not in key + encode(key, ENTRY, STATE)


@pytest.mark.parametrize("changes", [{"source": "x"}, {"tenant": "x"}, {"event_id": "x"}])
def test_value_of_another_event_is_rejected(changes: dict[str, str]) -> None:
    other = key_of(make_claim(**changes), STATE)
    assert other != KEY
    assert decode(other, VALUE, STATE) is None


def test_names_that_join_to_the_same_text_have_other_keys() -> None:
    one, other = make_claim("b", source="a", tenant=""), make_claim("", source="a", tenant="b")
    assert key_of(one, STATE) != key_of(other, STATE)


@pytest.mark.parametrize("state", [FastPathState(b"t" * 64, b"namespace", 0), FastPathState(b"s" * 64, b"restored", 0)])
def test_value_of_another_database_is_neither_found_nor_accepted(state: FastPathState) -> None:
    other = key_of(make_claim(), state)
    assert other != KEY
    assert decode(other, VALUE, state) is None


@pytest.mark.parametrize("value", [None, b"", "text", 7, VALUE[:-1], VALUE + b"x", b"\0" * len(VALUE)])
def test_value_of_another_form_is_rejected(value: object) -> None:
    assert decode(KEY, value, STATE) is None


@given(st.integers(0, len(VALUE) * 8 - 1))
def test_value_with_one_changed_bit_is_rejected(bit: int) -> None:
    changed = bytearray(VALUE)
    changed[bit // 8] ^= 1 << bit % 8
    assert decode(KEY, bytes(changed), STATE) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_rejected(value: bytes) -> None:
    assert decode(KEY, value, STATE) is None


async def test_deliveries_at_the_same_time_share_one_request() -> None:
    cache = Memory()
    shared = SharedReceipts(cache)
    claims = [make_claim(f"evt_{n}") for n in range(100)]
    for claim in claims:
        shared.put(claim, ENTRY, STATE)
    await shared.drain()
    found = await asyncio.gather(*(shared.find([claim], STATE) for claim in claims))
    assert found == [[ENTRY]] * 100
    assert cache.sizes == [100]


async def test_delivery_is_found_only_if_all_its_events_are() -> None:
    shared = SharedReceipts(Memory())
    shared.put(make_claim("evt_1"), ENTRY, STATE)
    await shared.drain()
    assert await shared.find([make_claim("evt_1"), make_claim("evt_2")], STATE) is None


async def test_cache_that_is_unavailable_gets_no_request() -> None:
    cache = Memory()
    cache.is_available = False
    shared = SharedReceipts(cache)
    shared.put(make_claim(), ENTRY, STATE)
    assert await shared.find([make_claim()], STATE) is None
    assert (cache.sizes, cache.stored) == ([], {})


async def test_a_limited_number_of_entries_waits_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncehook.receiver.fast_path.shared.MAX_WRITES", 2)
    cache = Memory()
    shared = SharedReceipts(cache)
    for number in range(3):
        shared.put(make_claim(f"evt_{number}"), ENTRY, STATE)
    await shared.drain()
    assert cache.stored.keys() == {key_of(make_claim(f"evt_{number}"), STATE) for number in range(2)}
