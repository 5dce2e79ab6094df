"""Quarantine: when an item whose process died may run in isolation."""

import pytest

from oncehook.concurrency.quarantine import FIRST_PATIENCE, INTERVAL, Quarantine
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_new_quarantine_is_due_and_holds_no_item(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    assert quarantine.is_due and quarantine.item is None and quarantine.patience_left is None


def test_an_item_waits_for_running_work_until_the_patience_ends(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    quarantine.hold("receipt")
    assert (quarantine.item, quarantine.patience_left) == ("receipt", FIRST_PATIENCE)
    clock.advance(FIRST_PATIENCE)
    assert quarantine.patience_left == 0


def test_if_no_item_is_found_the_next_look_is_an_interval_later(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    quarantine.hold(None)
    assert not quarantine.is_due
    clock.advance(INTERVAL)
    assert quarantine.is_due


def test_each_postponement_doubles_the_patience_and_the_pause(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    began, waited = clock.at, 0.0
    for round_ in range(6):
        assert quarantine.is_due
        quarantine.hold("receipt")
        assert quarantine.patience_left == 2**round_
        clock.advance(2**round_)
        waited += 2**round_
        released, due = quarantine.postpone(), bool(quarantine.is_due)
        assert (released, due) == ("receipt", False), "the caller must get the item to release it"
        clock.advance(10 * 2**round_)
    assert waited / (clock.at - began) < 0.1, "other work must get ten elevenths of the time"


def test_a_running_item_cannot_be_postponed(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    quarantine.hold("receipt")
    quarantine.start()
    assert quarantine.is_running and quarantine.patience_left is None
    assert quarantine.postpone() is None and quarantine.item == "receipt"


def test_after_an_item_other_work_gets_as_much_time_as_the_item_took(clock: ManualClock) -> None:
    quarantine: Quarantine[str] = Quarantine(clock)
    quarantine.hold("receipt")
    quarantine.start()
    clock.advance(7)
    quarantine.finish()
    assert quarantine.item is None and not quarantine.is_running and not quarantine.is_due
    clock.advance(7)
    assert quarantine.is_due
