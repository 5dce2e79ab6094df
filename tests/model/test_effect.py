"""Effects: states, results and rows."""

import pytest

from oncehook.model.effect import EffectFilter, EffectState, NoopCount, SettledEffect, StoredNoop


def test_states_are_the_texts_of_the_status_column() -> None:
    assert [str(state) for state in EffectState] == ["waiting", "performing", "retrying", "done", "failed"]


def test_settled_effect_counts_its_attempt_unless_it_says_otherwise() -> None:
    settled = SettledEffect(1, 1, EffectState.DONE)
    assert (settled.uncharged, settled.crashed, settled.after, settled.error) == (False, False, None, None)


def test_filter_without_conditions_selects_all_effects_and_cannot_be_changed() -> None:
    assert EffectFilter() == EffectFilter(None, None, None, None, None, None)
    with pytest.raises(AttributeError):
        EffectFilter().status = "done"  # type: ignore[misc]


def test_row_is_printed_with_its_columns_in_order() -> None:
    row = StoredNoop(at="2026-11-15T00:00:00.000000Z", reason="stale", scope="stripe", key="invoice:in_1")
    assert list(row.as_json()) == ["at", "reason", "scope", "key"]
    assert NoopCount("stripe", "stale", 2).as_json() == {"source": "stripe", "reason": "stale", "noops": 2}
