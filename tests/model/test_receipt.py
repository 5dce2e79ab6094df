"""Receipts: the JSON of an event, and filters."""

from datetime import UTC, datetime
from typing import Any

import pytest

from oncehook.model.receipt import PRINTED, Filter, Receipt, StoredPayload
from oncehook.model.states import State

MOMENT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


def make_receipt(**changes: Any) -> Receipt:
    values: dict[str, Any] = dict.fromkeys(Receipt.__struct_fields__)
    values |= {"receipt": 7, "source": "stripe", "provider": "stripe", "event_id": "evt_1", "type": "invoice.paid"}
    values |= {"received_at": MOMENT, "status": State.RECEIVED, "attempts": 0, "duplicates": 0, "replays": 0}
    return Receipt(**values | changes)


def test_json_has_the_documented_keys_in_order() -> None:
    assert tuple(make_receipt().as_json()) == PRINTED
    assert set(Receipt.__struct_fields__) - set(PRINTED) == {"unhandled_at", "main_id"}


def test_times_are_rfc_3339_in_utc() -> None:
    printed = make_receipt(failed_at=MOMENT).as_json()
    assert printed["received_at"] == printed["failed_at"] == "2026-11-15T12:30:00.000000Z"
    assert printed["processed_at"] is None


def test_correlation_id_is_the_receipt_number_if_there_is_none() -> None:
    assert make_receipt().as_json()["correlation_id"] == "7"
    assert make_receipt(correlation_id="order-1").as_json()["correlation_id"] == "order-1"


def test_filter_without_conditions_is_equal_to_an_empty_one() -> None:
    assert Filter() == Filter(source=None) != Filter(source="stripe")


def test_filter_and_payload_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Filter().source = "stripe"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        StoredPayload(b"", {}).body = b"x"  # type: ignore[misc]
