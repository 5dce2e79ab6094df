"""Messages of the queue: their form, hostile texts, and what becomes of a message that leases nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook.brokers.sqs import Received
from oncehook.model.rows import ListedReceipt, QueuedReceipt
from oncehook.model.states import State
from oncehook.worker.queue.message import End, QueueMessage, encode, end_of, parse

LEASE = 30.0


def queued(**changes: Any) -> QueuedReceipt:
    fields = {"receipt": 7, "source": "stripe", "event_id": "evt_1", "consumer": "main", "replays": 2, "lease": 3}
    return QueuedReceipt(**{**fields, "serial_key": None, "object_id": None, **changes})


def listed(**changes: Any) -> ListedReceipt:
    fields = {"receipt": 7, "source": "stripe", "consumer": "main", "serial_key": None, "status": State.RECEIVED}
    states = {"replays": 0, "is_inline": False, "is_rescued": False, "is_paused": False, "due_in": None}
    return ListedReceipt(**{**fields, **states, "lease_left": None, **changes})


def message(*, receives: int = 1, **changes: Any) -> QueueMessage:
    return QueueMessage(**{"receipt": 7, "consumer": "main", "replays": 0, "received": received(receives), **changes})


def received(receives: int = 1, body: str = "") -> Received:
    return Received(body, "handle", receives)


@given(st.text(min_size=1), st.text(min_size=1), st.integers(1, 2**63 - 1))
def test_a_sent_message_is_read_again_whatever_the_event_id(source: str, event_id: str, receipt: int) -> None:
    body = encode(queued(receipt=receipt, source=source, event_id=event_id)).body
    assert body.isascii() and body.isprintable(), "SQS rejects some characters"
    parsed = parse(received(body=body))
    if parsed is not None:  # a body above the limit is not read
        assert (parsed.receipt, parsed.consumer, parsed.replays) == (receipt, "main", 2)
    else:
        assert len(body) > 4096


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_any_other_text_names_no_receipt(body: str) -> None:
    assert parse(received(body=body)) is None


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "7"),
        ({"object_id": "in_1"}, "main\nstripe\nin_1"),
        ({"object_id": "in_1", "serial_key": "cus_1"}, "main\nstripe\ncus_1"),
        ({"object_id": "in_1", "consumer": "search"}, "search\nstripe\nin_1"),
    ],
)
def test_the_group_of_a_fifo_message_is_its_serial_key_or_object_or_receipt(changes: Any, group: str) -> None:
    assert encode(queued(**changes)).group == group


def test_each_lease_and_replay_has_its_own_deduplication_id() -> None:
    ids = {encode(queued(lease=lease, replays=replays)).deduplication for lease in range(3) for replays in range(3)}
    assert len(ids) == 9


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"status": State.PROCESSED}, End.DELETE),
        ({"status": State.IGNORED}, End.DELETE),
        ({"is_inline": True}, End.DELETE),
        ({"status": State.FAILED}, End.DEAD_LETTER),
        ({"status": State.FAILED, "replays": 1}, End.DELETE),  # the message is from before the replay
        ({"status": State.PROCESSING, "lease_left": 20.0}, 21.0),
        ({"status": State.PROCESSING, "lease_left": None}, 15.0),
        ({"status": State.RETRYING, "due_in": 50.0}, End.LATER),
        ({"status": State.RETRYING, "due_in": -1.0}, End.ELSEWHERE),
        ({"status": State.RETRYING, "is_rescued": True}, End.QUARANTINE),
        ({"is_paused": True, "is_rescued": True}, End.DELETE),
        ({"consumer": "search"}, End.DELETE),
        ({"serial_key": "in_1"}, End.DELETE),
        ({}, End.ELSEWHERE),
    ],
)
def test_the_state_of_the_receipt_decides_what_becomes_of_its_message(changes: Any, end: End | float) -> None:
    assert end_of(message(), listed(**changes), LEASE) == end


def test_the_message_of_a_receipt_that_does_not_exist_is_deleted() -> None:
    assert end_of(message(), None, LEASE) is End.DELETE


def test_copies_of_a_running_receipt_come_back_less_and_less_often() -> None:
    """Each receive counts towards maxReceiveCount."""
    running = listed(status=State.PROCESSING, lease_left=10.0)
    seconds = [end_of(message(receives=receives), running, LEASE) for receives in (1, 2, 3, 4, 10, 1000)]
    assert seconds == [15.0, 30.0, 60.0, 120.0, 7680.0, 491520.0]
