"""Rows of queries about email: their JSON has exactly their columns, and they cannot be changed."""

import pytest

from oncehook.email.rows import EventCount, Existence, StoredFact, StoredStatus


def test_status_as_json_has_all_columns() -> None:
    row = StoredStatus("m1", "jane@example.com", "ses", "bounced", "hard", "550", "t", "k1", None, None, None, "t")
    assert row.as_json() == {
        "message_id": "m1", "recipient": "jane@example.com", "source": "ses", "status": "bounced", "bounce": "hard",
        "reason": "550", "occurred_at": "t", "event_key": "k1", "delivered_at": None, "opened_at": None,
        "clicked_at": None, "last_at": "t",
    }  # fmt: skip


def test_rows_cannot_be_changed() -> None:
    row = EventCount("2025-11-01", None, "delivered", None, None, None, 2)
    with pytest.raises(AttributeError):
        row.events = 3  # type: ignore[misc]
    assert row.as_json()["events"] == 2


def test_equal_rows_compare_equal() -> None:
    assert Existence(1) == Existence(1) != Existence(2)


def test_fact_keeps_tags_and_metadata_as_json_text() -> None:
    row = StoredFact("ses", "k", "ses", "opened", None, "m", "", "t", None, '["a"]', "{}", 7)
    assert (row.as_json()["tags"], row.as_json()["metadata"], row.receipt) == ('["a"]', "{}", 7)
