"""Pages of events: filters, cursors, and searches that stop after a second."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from oncehook import Inbox
from oncehook.model.receipt import Filter, Receipt
from oncehook.testing import post
from oncehook.web import listing
from oncehook.web.listing import EventFilterForm, find_by_id, list_events, read_cursor, read_time, write_cursor
from oncehook.web.page import Problem
from tests.support.dashboard import both_databases, send
from tests.support.events import github_headers

pytestmark = pytest.mark.anyio


# -- filters and cursors as text ------------------------------------------------------------------------------------


def test_cursor_is_opaque_text_that_reads_back_as_the_same_position() -> None:
    position = ("2026-11-15T03:00:00.000000Z", 1042)
    cursor = write_cursor(position)
    assert cursor is not None and re.fullmatch(r"[\w-]+", cursor) and read_cursor(cursor) == position
    assert write_cursor(None) is None and read_cursor(None) is None and read_cursor("") is None


@pytest.mark.parametrize("text", ["x", "é", "MjAyNg", "AAAA" * 50])
def test_cursor_that_was_not_written_here_is_a_problem(text: str) -> None:
    with pytest.raises(Problem, match="The cursor is not valid") as error:
        read_cursor(text)
    assert error.value.code == "bad_cursor"


def test_age_is_counted_back_from_now() -> None:
    time = read_time("2h", "since")
    assert time is not None and timedelta(hours=2) <= datetime.now(UTC) - time < timedelta(hours=2, minutes=1)


@pytest.mark.parametrize(
    "text", ["2026-11-15T03:00:00Z", "2026-11-15T03:00", "2026-11-15T04:00:00+01:00"], ids=["UTC", "no zone", "zone"]
)
def test_time_without_a_zone_is_utc(text: str) -> None:
    assert read_time(text, "since") == datetime(2026, 11, 15, 3, tzinfo=UTC)
    assert read_time("2026-11-15", "since") == datetime(2026, 11, 15, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "5x", "2026-13-01", "T"])
def test_text_that_is_no_time_is_a_problem_that_names_the_field(text: str) -> None:
    with pytest.raises(Problem, match=r"^until must be an age \(2h, 7d\) or a time"):
        read_time(text, "until")


def test_filter_form_ignores_blanks_and_other_keys() -> None:
    form = EventFilterForm.of({"source": " stripe ", "type": "", "cursor": "x", "object": None})
    assert form.non_empty() == {"source": "stripe"}
    assert form.parse() == Filter(source="stripe")


def test_unknown_status_is_a_problem_that_lists_the_known_ones() -> None:
    with pytest.raises(Problem, match=r"status must be one of received, .*unhandled"):
        EventFilterForm(status="done").parse()


# -- pages ----------------------------------------------------------------------------------------------------------


@both_databases
async def test_every_field_filters_and_all_conditions_must_hold(inbox: Inbox) -> None:
    first = await send(inbox, "evt_1", note="a needle")
    second = await send(inbox, "evt_2", "charge.failed")
    body = b'{"repository": {"full_name": "a/b"}, "needle": 1}'
    pushed = int((await post(inbox, "github", body, github_headers(body, "d-1"))).json["receipt"])
    for fields, expected in [
        ({}, [pushed, second, first]),
        ({"source": "stripe"}, [second, first]),
        ({"type": "invoice.*"}, [first]),
        ({"type": "charge"}, [second]),
        ({"object": "in_1"}, [second, first]),
        ({"tenant": "acme"}, []),
        ({"status": "received"}, [pushed, second, first]),
        ({"status": "failed"}, []),
        ({"since": "1h"}, [pushed, second, first]),
        ({"until": "1h"}, []),
        ({"search": "needle"}, [pushed, first]),
        ({"search": "needle", "source": "github"}, [pushed]),
        ({"search": "nothing at all"}, []),
    ]:
        page = await list_events(inbox._runtime.store.receipts, EventFilterForm.of(fields).parse(), None)
        assert [receipt.receipt for receipt in page.receipts] == expected, fields


@both_databases
@pytest.mark.parametrize(
    "condition", [Filter(), Filter(source="stripe"), Filter(object="in_1")], ids=["all", "source", "object"]
)
async def test_pages_follow_each_other_without_gaps_or_repeats(inbox: Inbox, condition: Filter) -> None:
    sent = [await send(inbox, f"evt_{n:02}") for n in range(13)]
    receipts, position = [], None
    while True:
        page = await list_events(inbox._runtime.store.receipts, condition, position, limit=5)
        receipts += [receipt.receipt for receipt in page.receipts]
        position = page.next
        if position is None:
            break
    assert receipts == sent[::-1]


@both_databases
@pytest.mark.parametrize("window", [2, 5])
async def test_page_is_filled_from_several_windows_and_a_full_last_page_has_no_next(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(listing, "WINDOW", window)
    monkeypatch.setattr(listing, "SECONDS", 60.0)
    sent = [await send(inbox, f"evt_{n:02}") for n in range(10)]
    receipts, condition = inbox._runtime.store.receipts, Filter(source="stripe")
    first = await list_events(receipts, condition, None, limit=5)
    last = await list_events(receipts, condition, first.next, limit=5)
    pages = [[receipt.receipt for receipt in page.receipts] for page in (first, last)]
    assert (pages, last.next) == ([sent[:4:-1], sent[4::-1]], None)


async def test_search_that_runs_out_of_time_says_how_far_it_got_and_continues(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = await send(inbox, "evt_first", "rare.event")
    for n in range(10):
        await send(inbox, f"evt_{n}")
    monkeypatch.setattr(listing, "WINDOW", 4)
    monkeypatch.setattr(listing, "SECONDS", 0.0)
    receipts: list[Receipt] = []
    position, pages = None, 0
    while True:
        page = await list_events(inbox._runtime.store.receipts, Filter(type="rare.event"), position)
        receipts, position, pages = receipts + page.receipts, page.next, pages + 1
        assert (page.searched_to is None) == (position is None), "an unfinished page must say how far it searched"
        if position is None:
            break
    assert [receipt.receipt for receipt in receipts] == [rare] and pages == 3


@both_databases
async def test_event_is_found_by_its_receipt_number_and_by_its_event_id(inbox: Inbox) -> None:
    first, _ = await send(inbox, "evt_1"), await send(inbox, "evt_2")
    for text in ("evt_1", str(first)):
        assert [receipt.receipt for receipt in await find_by_id(inbox._runtime.store.receipts, text)] == [first]
    assert await find_by_id(inbox._runtime.store.receipts, "evt") == []
