"""Selecting and counting the events of a bulk replay."""

import pytest

from oncehook import Inbox
from oncehook.testing import deliver, drain
from oncehook.web import replays
from oncehook.web.listing import EventFilterForm
from oncehook.web.page import Context, Problem
from oncehook.web.replays import count_replay, select_events
from tests.support.dashboard import both_databases, send

pytestmark = pytest.mark.anyio


@pytest.fixture
async def dead_letters(shop: Inbox) -> list[int]:
    """Three dead letters whose errors differ only in their event id, and one with another error."""
    receipts = [await send(shop, f"evt_{n}", "charge.failed") for n in range(3)]
    await deliver(shop, "stripe", b'{"type": "charge.failed"}')  # without an id
    await drain(shop)
    return receipts


async def test_empty_filter_is_a_problem(context: Context) -> None:
    with pytest.raises(Problem, match="Set at least one filter field"):
        await select_events(context, EventFilterForm())


@both_databases
async def test_error_selects_the_dead_letters_that_differ_only_in_their_ids(
    context: Context, dead_letters: list[int]
) -> None:
    form = EventFilterForm(status="failed", source="stripe", error="Fail: card evt_7 declined")
    selection = await select_events(context, form)
    assert sorted(selection.receipts or ()) == dead_letters
    plan = await count_replay(context, selection)
    assert (plan.count, plan.matched) == (3, 3)


async def test_error_selects_dead_letters_of_every_page(
    context: Context, dead_letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "DEAD_LETTER_PAGE", 1)
    selection = await select_events(context, EventFilterForm(status="failed", error="Fail: card evt_7 declined"))
    assert sorted(selection.receipts or ()) == dead_letters


async def test_too_many_dead_letters_with_one_error_are_a_problem(
    context: Context, dead_letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "MAX_BY_ERROR", 2)
    form = EventFilterForm(status="failed", error="Fail: card evt_7 declined")
    with pytest.raises(Problem, match="More than 2 dead letters have this error"):
        await select_events(context, form)


async def test_count_that_takes_too_long_is_a_problem(
    context: Context, dead_letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "COUNT_TIMEOUT", 0.0)
    selection = await select_events(context, EventFilterForm(status="failed"))
    with pytest.raises(Problem, match="matches too many events to count") as error:
        await count_replay(context, selection)
    assert error.value.code == "too_many"


async def test_event_that_cannot_be_replayed_is_counted_with_the_reason(shop: Inbox, context: Context) -> None:
    await send(shop, "evt_1")
    plan = await count_replay(context, await select_events(context, EventFilterForm(source="stripe")))
    assert (plan.count, plan.matched, dict(plan.left)) == (0, 1, {"received": 1})
