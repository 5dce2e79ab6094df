"""Selects events for an operator: by receipt number, by event id, or by a filter."""

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
from oncehook.store.rows import Selection
from oncehook.store.store import Store

PAGE = 500
STATES = (*(state.value for state in State), UNHANDLED)

When = datetime | timedelta | str
"""A point in time: a datetime, a text ("2026-11-15", "2026-11-15T03:00:00Z"), or an age ("2h", "7d", a timedelta)."""


class EventFilter(TypedDict, total=False):
    """The conditions of an event filter. An event must meet all of them."""

    source: str
    tenant: str
    consumer: str  # `main`, or the name of another consumer
    type: str  # a pattern with * and ?, or a dotted prefix
    object: str  # the id of the object that the events are about
    status: State | str  # or "unhandled": waiting events without a handler in any process
    since: When
    until: When
    search: str  # an event id, an object id, or a text in the payload


class EventNotFound(OncehookError, LookupError):
    """There is no event with this receipt number or id."""


class EventAmbiguous(OncehookError, LookupError):
    """Several sources have an event with this id."""


def parse_when(value: When) -> datetime:
    """Parse a point in time as an operator writes it. Raises ValueError if it is not one."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.astimezone()
    if isinstance(value, timedelta):
        return SYSTEM.datetime() - value
    try:
        return SYSTEM.datetime() - timedelta(seconds=duration(value))
    except (ValueError, OverflowError):
        time = parse_time(value if "T" in value or " " in value else f"{value}T00:00:00Z")
        if time is None or value.isdigit():
            raise ValueError(
                f"{value!r} is not a time: use an age such as 2h or 7d, or a time such as 2026-11-15T03:00:00Z"
            ) from None
        return time.astimezone(UTC)


def make_filter(**conditions: Unpack[EventFilter]) -> Filter:
    """Make a filter from conditions. A condition that is None is ignored.

    Raises TypeError for an unknown condition, and ValueError for an invalid status or time.
    """
    unknown = [name for name in conditions if name not in EventFilter.__annotations__]
    if unknown:
        raise TypeError(f"there is no filter {unknown[0]!r}; the filters are {', '.join(EventFilter.__annotations__)}")
    status = conditions.get("status")
    if status is not None and status not in STATES:
        raise ValueError(f"status={status!r} is not a status; the statuses are {', '.join(STATES)}")
    since, until = conditions.get("since"), conditions.get("until")
    return Filter(
        source=conditions.get("source"),
        tenant=conditions.get("tenant"),
        consumer=conditions.get("consumer"),
        type=conditions.get("type"),
        object=conditions.get("object"),
        status=None if status is None else str(status),
        since=None if since is None else parse_when(since),
        until=None if until is None else parse_when(until),
        search=conditions.get("search") or None,  # every payload contains the empty text
    )


def is_one_selection(names: Sequence[int | str], event_filter: Filter, handled_by: str | None = None) -> bool:
    """Return whether events are selected either by names or by a filter. A consumer can narrow both."""
    if names:
        return event_filter == Filter(consumer=event_filter.consumer) and handled_by is None
    return event_filter != Filter() or handled_by is not None


async def find_events(store: Store, event_filter: Filter, limit: int | None = None) -> AsyncIterator[Receipt]:
    """Read the events that match the filter page by page, newest first, up to `limit`."""
    before, remaining = None, limit
    while remaining is None or remaining > 0:
        page = await store.receipts.find(
            event_filter, limit=PAGE if remaining is None else min(PAGE, remaining), before=before
        )
        for receipt in page:
            yield receipt
        if not page:
            return
        before = rfc3339(page[-1].received_at) or "", page[-1].receipt
        remaining = None if remaining is None else remaining - len(page)


MAX_MATCHES = 500
"""How many receipts with one event id are read: of all sources, tenants and consumers."""


async def find_event(store: Store, name: int | str) -> Receipt | None:
    """Find an event by the number of a receipt, or else by its id: the receipt that the consumer `main` has of it.

    Raises EventAmbiguous if several sources or tenants have the id.
    """
    receipts = await _receipts_of(store, name)
    return receipts[0] if receipts else None


async def _receipts_of(store: Store, name: int | str) -> list[Receipt]:
    """Return the receipt with a number, or else those that all consumers have of an event, that of `main` first."""
    text = str(name)
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    receipt = await store.receipts.get(int(text)) if is_number else None
    if receipt is not None:
        return [receipt]
    matches = await store.receipts.find(Filter(event_id=text), limit=MAX_MATCHES)
    matches.sort(key=lambda match: (match.main_id is not None, match.receipt))
    events = [match for match in matches if match.main_id is None]
    if len(events) > 1:
        choices = ", ".join(f"{match.receipt} ({match.scope})" for match in events)
        raise EventAmbiguous(f"{text} is in several sources or tenants: pass one of the receipts {choices}")
    return matches


async def find_receipts(store: Store, names: Sequence[int | str]) -> tuple[int, ...]:
    """Return the receipts of all names. An event id names the receipts that all consumers have of the event.

    Raises EventNotFound for an unknown name, TypeError for another type.
    """
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (int, str)):
            example = 'pass receipt numbers or event ids as separate arguments, such as 1, "evt_2"'
            raise TypeError(f"{name!r:.80} is not an event: {example}")
    events = [(name, await _receipts_of(store, name)) for name in names]
    missing = [str(name) for name, receipts in events if not receipts]
    if missing:
        raise EventNotFound(f"there is no event {', '.join(missing)}; nothing was done")
    return tuple(sorted({receipt.receipt for _, receipts in events for receipt in receipts}))


async def select(
    store: Store, receipts: Sequence[int | str], filters: EventFilter, handled_by: str | None
) -> Selection:
    """Return the selection by receipts or by filter. Raises ValueError unless exactly one of them is used."""
    condition = make_filter(**filters)
    if not is_one_selection(receipts, condition, handled_by):
        raise ValueError('pass either receipts or a filter, such as status="failed"')
    numbers = await find_receipts(store, receipts) if receipts else None
    return Selection(condition, receipts=numbers, handled_by=handled_by)
