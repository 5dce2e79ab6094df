"""Pages of events, newest first. The time of a query does not grow with the number of events.

Filters that an index covers (object, id, dead letters) run as one query. Every other filter is searched in windows of
receipts, from the newest backwards, until the page is full or SECONDS have passed. The page then shows how far back it
searched, and the next page continues from there.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import UNHANDLED, State
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import duration
from oncehook.operations.payloads import search_note
from oncehook.providers.expressions import parse_time
from oncehook.store.operator_protocols import ReceiptStore
from oncehook.store.rows import ReceiptPosition
from oncehook.web.page import Context, Problem, check_texts, parse_id

PAGE = 50
WINDOW = 20_000
SEARCH_WINDOW = 1_000
SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events, and the cursor of the next page."""

    receipts: list[Receipt]
    next: ReceiptPosition | None = None
    searched_to: str | None = None  # set if the search ran out of time before the page was full


async def list_events(
    receipts: ReceiptStore, condition: Filter, before: ReceiptPosition | None, limit: int = PAGE
) -> EventPage:
    """Return the newest events that match `condition` and are older than `before`."""
    if _is_indexed(condition):
        return _page(await receipts.find(condition, limit=limit + 1, before=before), limit)
    return await _search_windows(receipts, condition, before, limit)


async def encrypted_note(context: Context, condition: Filter) -> str | None:
    """Return a note if the search leaves out payloads that are encrypted, or None."""
    sources = {name: source.settings for name, source in context.runtime.sources.items()}
    return await search_note(context.store, condition, sources)


def _is_indexed(condition: Filter) -> bool:
    if condition.object is not None or condition.event_id is not None or condition.tenant is not None:
        return True
    if condition.status in (State.FAILED.value, UNHANDLED):
        return True
    return condition == Filter(since=condition.since, until=condition.until)


def _page(rows: list[Receipt], limit: int) -> EventPage:
    return EventPage(rows[:limit], position(rows[limit - 1]) if len(rows) > limit else None)


async def _search_windows(
    receipts: ReceiptStore, condition: Filter, before: ReceiptPosition | None, limit: int
) -> EventPage:
    size = WINDOW if condition.search is None else SEARCH_WINDOW
    deadline = SYSTEM.monotonic() + SECONDS
    rows: list[Receipt] = []
    while True:
        end = await receipts.window_end(condition, before=before, size=size)
        rows += await receipts.find(condition, limit=limit + 1 - len(rows), before=before, down_to=end)
        if len(rows) > limit:
            return _page(rows, limit)
        if end is None:
            return EventPage(rows)
        if SYSTEM.monotonic() > deadline:
            return EventPage(rows, end, end[0])
        before = end


async def find_by_id(receipts: ReceiptStore, text: str) -> list[Receipt]:
    """The events whose receipt number or event id is `text`."""
    matches = await receipts.by_event_id(text, limit=10)
    number = parse_id(text)
    if number is not None:
        receipt = await receipts.get(number)
        matches += [receipt] if receipt is not None and receipt not in matches else []
    return matches


def position(receipt: Receipt) -> ReceiptPosition:
    """The position of a receipt in the lists."""
    return rfc3339(receipt.received_at) or "", receipt.receipt


# -- cursors and filters as text ------------------------------------------------------------------------------------


def write_cursor(position: ReceiptPosition | None) -> str | None:
    """Encode a position as an opaque cursor."""
    if position is None:
        return None
    return base64.urlsafe_b64encode(f"{position[0]} {position[1]}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> ReceiptPosition | None:
    if not text:
        return None
    try:
        time, number = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").split(" ")
        if parse_time(time) is None or not (number.isdigit() and len(number) < 19):
            raise ValueError
    except ValueError:
        raise Problem(400, "bad_cursor", "The cursor is not valid. Start at the first page.") from None
    return time, int(number)


class EventFilterForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A filter as text fields, from a URL, a form or JSON. Empty fields are ignored."""

    source: str = ""
    tenant: str = ""
    consumer: str = ""
    type: str = ""
    object: str = ""
    status: str = ""
    since: str = ""
    until: str = ""
    search: str = ""
    error: str = ""  # only for replays: selects the dead letters with a similar error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "EventFilterForm":
        """Read the fields from a mapping and ignore its other keys."""
        return cls(**{name: str(values.get(name) or "").strip() for name in cls.__struct_fields__})

    def parse(self) -> Filter:
        """Return the filter. Raises Problem if a field is not valid."""
        check_texts({name: getattr(self, name) for name in self.__struct_fields__})
        if self.status and self.status not in {*State, UNHANDLED}:
            raise Problem(422, "bad_filter", f"status must be one of {', '.join(State)}, {UNHANDLED}.")
        return Filter(
            source=self.source or None,
            tenant=self.tenant or None,
            consumer=self.consumer or None,
            type=self.type or None,
            object=self.object or None,
            status=self.status or None,
            since=read_time(self.since, "since"),
            until=read_time(self.until, "until"),
            search=self.search or None,
        )

    def non_empty(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


def read_time(text: str, name: str) -> datetime | None:
    """Parse an age (2h, 7d) or a time (2026-11-15T03:00:00Z, or without a zone, which means UTC)."""
    if not text:
        return None
    try:
        return SYSTEM.datetime() - timedelta(seconds=duration(text))
    except (ValueError, OverflowError):
        pass
    full = text if "T" in text else f"{text}T00:00:00"
    full = full if full.count(":") > 1 else f"{full}:00"
    time = None if text.isdigit() else parse_time(full) or parse_time(f"{full}Z")
    if time is None:
        raise Problem(422, "bad_filter", f"{name} must be an age (2h, 7d) or a time (2026-11-15T03:00:00Z).")
    return time
