"""Defaults and limits of the store's parameter types."""

from dataclasses import FrozenInstanceError

import pytest

from oncehook.model.receipt import Filter
from oncehook.store.rows import MAX_DUPLICATES, MAX_REJECTIONS, EffectTarget, Selection


def test_selection_without_conditions_selects_every_receipt() -> None:
    selection = Selection()
    assert selection.filter == Filter() and selection.receipts is None
    assert (selection.handled_by, selection.after, selection.horizon) == (None, 0, None)


def test_selections_do_not_share_a_filter_that_could_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Selection().filter.source = "stripe"  # type: ignore[misc]


def test_selection_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Selection().after = 7  # type: ignore[misc]


def test_effect_target_of_all_targets_has_none() -> None:
    assert EffectTarget("function", None, 30.0) != EffectTarget("function", "send", 30.0)


def test_documented_limits() -> None:
    assert (MAX_DUPLICATES, MAX_REJECTIONS) == (100, 20)
