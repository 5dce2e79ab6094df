"""Selecting events: times, filters, receipt numbers and event ids."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook import Inbox, State
from oncehook.model.claim import ConsumerClaim
from oncehook.model.receipt import Filter
from oncehook.operations import selection
from oncehook.operations.selection import (
    EventAmbiguous,
    EventNotFound,
    find_event,
    find_events,
    find_receipts,
    is_one_selection,
    make_filter,
    parse_when,
)
from tests.support.work import claim

TIME = datetime(2026, 11, 15, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-15T03:00:00Z", TIME),
        ("2026-11-15T04:00:00+01:00", TIME),
        ("2026-11-15 03:00:00Z", TIME),
        ("2026-11-15", TIME.replace(hour=0)),
    ],
)
def test_time_is_parsed_as_an_operator_writes_it(text: str, expected: datetime) -> None:
    assert parse_when(text) == expected


@pytest.mark.parametrize("age", ["2h", timedelta(hours=2)])
def test_age_counts_back_from_now(age: str | timedelta) -> None:
    assert abs(datetime.now(UTC) - timedelta(hours=2) - parse_when(age)) < timedelta(minutes=1)


def test_datetime_without_a_zone_is_local_time() -> None:
    assert parse_when(datetime(2026, 11, 15, 3)).tzinfo is not None
    assert parse_when(TIME) is TIME


@pytest.mark.parametrize("text", ["soon", "9" * 30, "2026-13-01", ""])
def test_text_that_is_not_a_time_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: use an age such as 2h or 7d"):
        parse_when(text)


def test_filter_has_the_given_conditions_and_ignores_none() -> None:
    made = make_filter(source="stripe", status=State.FAILED, since="2026-11-15", search="", type=None)  # type: ignore[arg-type]
    assert made == Filter(source="stripe", status="failed", since=TIME.replace(hour=0))


@pytest.mark.parametrize(
    ("conditions", "error", "message"),
    [
        ({"sauce": "stripe"}, TypeError, "there is no filter 'sauce'; the filters are source, tenant, consumer, type"),
        ({"status": "dead"}, ValueError, "status='dead' is not a status; the statuses are received"),
        ({"until": "later"}, ValueError, "'later' is not a time"),
    ],
)
def test_wrong_condition_is_an_error_that_names_it(
    conditions: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_filter(**conditions)


@pytest.mark.anyio
async def test_event_is_found_by_receipt_number_before_its_id(inbox: Inbox) -> None:
    store = inbox._runtime.store
    first, second = await claim(store, "evt_1", "evt_2")
    await claim(store, str(first), source="github")
    for name, expected in ((second, "evt_2"), (str(second), "evt_2"), ("evt_1", "evt_1"), (str(first), "evt_1")):
        event = await find_event(store, name)
        assert event is not None and event.event_id == expected, f"{name} must find {expected}"
    assert await find_event(store, "9" * 30) is None


@pytest.mark.anyio
async def test_id_that_several_sources_have_is_ambiguous(inbox: Inbox) -> None:
    store = inbox._runtime.store
    (first,) = await claim(store, "evt_1")
    (second,) = await claim(store, "evt_1", source="github")
    with pytest.raises(EventAmbiguous, match=rf"pass one of the receipts .*{second} \(github\)"):
        await find_event(store, "evt_1")
    assert await find_receipts(store, [second, first]) == (first, second)


@pytest.mark.anyio
async def test_event_id_names_the_receipts_of_all_consumers(inbox: Inbox) -> None:
    store = inbox._runtime.store
    (main,) = await claim(store, "evt_1", copies=(ConsumerClaim("ledger"), ConsumerClaim("analytics")))
    copies = [row.receipt async for row in find_events(store, Filter()) if row.consumer != "main"]
    assert await find_receipts(store, ["evt_1"]) == tuple(sorted([main, *copies]))
    assert await find_receipts(store, [copies[0]]) == (copies[0],)
    event = await find_event(store, "evt_1")
    assert event is not None and event.receipt == main
    assert [row.consumer async for row in find_events(store, make_filter(consumer="ledger"))] == ["ledger"]


@pytest.mark.parametrize(
    ("names", "conditions", "handled_by", "expected"),
    [
        (["evt_1"], {}, None, True),
        (["evt_1"], {"consumer": "ledger"}, None, True),
        (["evt_1"], {"source": "stripe"}, None, False),
        (["evt_1"], {}, "v1", False),
        ([], {"consumer": "ledger"}, None, True),
        ([], {}, "v1", True),
        ([], {}, None, False),
    ],
)
def test_events_are_selected_by_names_or_by_a_filter_and_a_consumer_narrows_both(
    names: list[str], conditions: dict[str, Any], handled_by: str | None, expected: bool
) -> None:
    assert is_one_selection(names, make_filter(**conditions), handled_by) is expected


@pytest.mark.anyio
async def test_unknown_names_are_all_listed_and_other_types_rejected(inbox: Inbox) -> None:
    store = inbox._runtime.store
    await claim(store, "evt_1")
    with pytest.raises(EventNotFound, match="there is no event evt_8, 99; nothing was done"):
        await find_receipts(store, ["evt_1", "evt_8", 99])
    with pytest.raises(TypeError, match="pass receipt numbers or event ids as separate arguments"):
        await find_receipts(store, [["evt_1"]])  # type: ignore[list-item]


@pytest.mark.anyio
async def test_events_are_read_page_by_page_up_to_the_limit(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PAGE", 2)
    store = inbox._runtime.store
    await claim(store, *(f"evt_{number}" for number in range(5)))
    everything = [event.event_id async for event in find_events(store, Filter())]
    assert sorted(everything) == [f"evt_{number}" for number in range(5)]
    assert [event.event_id async for event in find_events(store, Filter(), limit=3)] == everything[:3]
