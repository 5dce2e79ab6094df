"""Which events an operator means: by their numbers or ids, or by a filter."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.errors import OncehookError
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.states import UNHANDLED, State
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import duration
from oncehook.providers.expressions import parse_time
from oncehook.store.store import Store

PAGE = 500
STATES = (*(state.value for state in State), UNHANDLED)

When = datetime | timedelta | str
"""A time: a datetime, how long ago ("2h", "7d", a timedelta) or when ("2026-11-15", "2026-11-15T03:00:00Z")."""


class EventFilter(TypedDict, total=False):
    """Which events are meant. All conditions hold together."""

    source: str
    type: str  # a pattern with * and ?, or a dotted prefix
    object: str  # the id of the object that they are about
    status: State | str  # or "unhandled": they wait, and no process has a handler for them
    since: When
    until: When
    search: str  # an id, an object's id, or a text in the payload


class EventNotFound(OncehookError, LookupError):
    """There is no event of this number or id."""


class EventAmbiguous(OncehookError, LookupError):
    """Several sources have an event of this id."""


def parse_moment(value: When) -> datetime:
    """A moment as a person gives it. Raises ValueError for what is none."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.astimezone()
    if isinstance(value, timedelta):
        return SYSTEM.datetime() - value
    try:
        return SYSTEM.datetime() - timedelta(seconds=duration(value))
    except (ValueError, OverflowError):
        found = parse_time(value if "T" in value or " " in value else f"{value}T00:00:00Z")
        if found is None or value.isdigit():
            raise ValueError(
                f"{value!r} is not a time: use how long ago (2h, 7d) or when (2026-11-15T03:00:00Z)"
            ) from None
        return found.astimezone(UTC)


def make_filter(**wanted: Unpack[EventFilter]) -> Filter:
    """The filter for these conditions; None is no condition.

    Raises TypeError for a condition that does not exist, ValueError for a status or a time that is none.
    """
    unknown = [name for name in wanted if name not in EventFilter.__annotations__]
    if unknown:
        raise TypeError(f"there is no filter {unknown[0]!r}: known are {', '.join(EventFilter.__annotations__)}")
    status = wanted.get("status")
    if status is not None and status not in STATES:
        raise ValueError(f"status={status!r} is not a status: known are {', '.join(STATES)}")
    since, until = wanted.get("since"), wanted.get("until")
    return Filter(
        source=wanted.get("source"),
        type=wanted.get("type"),
        object=wanted.get("object"),
        status=None if status is None else str(status),
        since=None if since is None else parse_moment(since),
        until=None if until is None else parse_moment(until),
        search=wanted.get("search") or None,  # every payload contains the empty text
    )


async def find_events(store: Store, wanted: Filter, limit: int | None = None) -> AsyncIterator[Receipt]:
    """The events that are meant, newest first, at most `limit`; read page by page."""
    before, left = None, limit
    while left is None or left > 0:
        page = await store.receipts.find(wanted, limit=PAGE if left is None else min(PAGE, left), before=before)
        for receipt in page:
            yield receipt
        if not page:
            return
        before = rfc3339(page[-1].received_at) or "", page[-1].receipt
        left = None if left is None else left - len(page)


async def find_event(store: Store, name: int | str) -> Receipt | None:
    """An event by its receipt's number first, then by the sender's id. Raises EventAmbiguous if sources share it."""
    text = str(name)
    found = await store.receipts.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 19 else None
    if found is not None:
        return found
    same = await store.receipts.find(Filter(event_id=text), limit=20)
    if len(same) > 1:
        choices = ", ".join(f"{receipt.receipt} ({receipt.source})" for receipt in same)
        raise EventAmbiguous(f"{text} is in several sources: give the receipt, one of {choices}")
    return same[0] if same else None


async def find_receipts(store: Store, names: Sequence[int | str]) -> tuple[int, ...]:
    """The receipts of all names. Raises EventNotFound if one is unknown, TypeError for what is no name."""
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (int, str)):
            raise TypeError(
                f'{name!r:.80} is not an event: give receipt numbers or event ids one by one, such as 1, "evt_2"'
            )
    found = [(name, await find_event(store, name)) for name in names]
    missing = [str(name) for name, receipt in found if receipt is None]
    if missing:
        raise EventNotFound(f"there is no event {', '.join(missing)}; nothing was done")
    return tuple(sorted({receipt.receipt for _, receipt in found if receipt is not None}))
