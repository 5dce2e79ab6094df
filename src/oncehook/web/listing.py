"""Lists of events, newest first, that stay quick however many there are.

What an index leads to (an object, an id, the dead letters) is asked for as it is. Everything else is looked for in
windows of the newest receipts, one after the other, until the page is full or its time is up; then the page says how
far it has looked, and goes on from there when it is asked to.
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
from oncehook.providers.expressions import parse_time
from oncehook.store.operator_protocols import ReceiptStore
from oncehook.store.rows import Place
from oncehook.web.page import Problem, check_texts

PAGE = 50
WINDOW = 20_000
WINDOW_OF_BODIES = 1_000
SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list: what was found, where to go on, and how far it has looked if that is further."""

    receipts: list[Receipt]
    next: Place | None = None
    looked_to: str | None = None  # set where it stopped for time, not for room


async def list_events(receipts: ReceiptStore, wanted: Filter, before: Place | None, limit: int = PAGE) -> Listing:
    """The next page after `before`."""
    if wanted.object is not None or wanted.event_id is not None or wanted.status in (State.FAILED.value, UNHANDLED):
        return _page(await receipts.find(wanted, limit=limit + 1, before=before), limit)
    if _by_time_alone(wanted):
        return _page(await receipts.find(wanted, limit=limit + 1, before=before), limit)
    return await _through_windows(receipts, wanted, before, limit)


def _by_time_alone(wanted: Filter) -> bool:
    return wanted == Filter(since=wanted.since, until=wanted.until)


def _page(found: list[Receipt], limit: int) -> Listing:
    return Listing(found[:limit], place(found[limit - 1]) if len(found) > limit else None)


async def _through_windows(receipts: ReceiptStore, wanted: Filter, before: Place | None, limit: int) -> Listing:
    size = WINDOW if wanted.search is None else WINDOW_OF_BODIES
    deadline = SYSTEM.monotonic() + SECONDS
    found: list[Receipt] = []
    while True:
        end = await receipts.window_end(wanted, before=before, size=size)
        found += await receipts.find(wanted, limit=limit + 1 - len(found), before=before, down_to=end)
        if len(found) > limit:
            return _page(found, limit)
        if end is None:
            return Listing(found)
        if SYSTEM.monotonic() > deadline:
            return Listing(found, end, end[0])
        before = end


async def exactly(receipts: ReceiptStore, text: str) -> list[Receipt]:
    """The events that a text names: by receipt, or by the sender's id."""
    named = await receipts.by_event_id(text, limit=10)
    if text.isascii() and text.isdigit() and len(text) < 19:
        one = await receipts.get(int(text))
        named += [one] if one is not None and one not in named else []
    return named


def place(receipt: Receipt) -> Place:
    return rfc3339(receipt.received_at) or "", receipt.receipt


# -- what a person or a program asks for ----------------------------------------------------------------------------


def write_cursor(place: Place | None) -> str | None:
    """A place as an opaque text."""
    return None if place is None else base64.urlsafe_b64encode(f"{place[0]} {place[1]}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Place | None:
    if not text:
        return None
    try:
        time, number = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").split(" ")
        if parse_time(time) is None or not (number.isdigit() and len(number) < 19):
            raise ValueError
    except ValueError:
        raise Problem(400, "bad_cursor", "The cursor is not one of ours: start at the first page.") from None
    return time, int(number)


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A filter as it is asked for, in an address, a form or JSON: texts only, and empty ones count for nothing."""

    source: str = ""
    type: str = ""
    object: str = ""
    status: str = ""
    since: str = ""
    until: str = ""
    search: str = ""
    error: str = ""  # only for replays: dead letters whose error has the shape of this one

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Asked":
        """Out of a mapping of texts; what is not a field of a filter is not its business."""
        return cls(**{name: str(given.get(name) or "").strip() for name in cls.__struct_fields__})

    def filter(self) -> Filter:
        """Raises Problem for what cannot be meant."""
        check_texts({name: getattr(self, name) for name in self.__struct_fields__})
        if self.status and self.status not in {*State, UNHANDLED}:
            raise Problem(422, "bad_filter", f"status is not one of {', '.join(State)}, {UNHANDLED}.")
        since, until = read_moment(self.since, "since"), read_moment(self.until, "until")
        source, type_, about = self.source or None, self.type or None, self.object or None
        return Filter(
            source=source,
            type=type_,
            object=about,
            status=self.status or None,
            since=since,
            until=until,
            search=self.search or None,
        )

    def given(self) -> dict[str, str]:
        """Only what was asked for."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


def read_moment(text: str, name: str) -> datetime | None:
    """How long ago (2h, 7d) or when (2026-11-15T03:00:00Z, or as a browser's field has it, which is UTC here)."""
    if not text:
        return None
    try:
        return SYSTEM.datetime() - timedelta(seconds=duration(text))
    except (ValueError, OverflowError):
        pass
    whole = text if "T" in text else f"{text}T00:00:00"
    whole = whole if whole.count(":") > 1 else f"{whole}:00"
    found = None if text.isdigit() else parse_time(whole) or parse_time(f"{whole}Z")
    if found is None:
        told = f"{name} is not a time: use how long ago (2h, 7d) or when (2026-11-15T03:00:00Z)."
        raise Problem(422, "bad_filter", told)
    return found
