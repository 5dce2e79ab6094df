"""Selects and counts the events of a bulk replay, for the dashboard and the API."""

import asyncio
from dataclasses import replace

from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.dead_letters import error_pattern
from oncehook.operations.replay import Replayed, preview
from oncehook.store.rows import Selection
from oncehook.web.listing import EventFilterForm, position
from oncehook.web.page import Context, Problem

DEAD_LETTER_PAGE = 500
MAX_BY_ERROR = 5_000
COUNT_TIMEOUT = 15.0
"""Seconds after which Oncehook stops counting the events of a replay."""


async def count_replay(context: Context, selection: Selection) -> Replayed:
    try:
        async with asyncio.timeout(COUNT_TIMEOUT):
            return await preview(context.store, selection)
    except TimeoutError:
        message = "The filter matches too many events to count. Narrow it, for example by time."
        raise Problem(422, "too_many", message) from None


async def select_events(context: Context, form: EventFilterForm) -> Selection:
    condition = form.parse()
    if condition == Filter():
        raise Problem(422, "bad_filter", "Set at least one filter field. A replay of every event is not allowed.")
    if not form.error:
        return Selection(condition)
    return Selection(condition, await _with_similar_error(context, condition, form.error))


async def _with_similar_error(context: Context, condition: Filter, error: str) -> tuple[int, ...]:
    """The dead letters whose error differs from `error` only in its ids and numbers."""
    receipts: list[int] = []
    error_shape, before = error_pattern(error), None
    while page := await context.store.receipts.find(
        replace(condition, status=State.FAILED.value), limit=DEAD_LETTER_PAGE, before=before
    ):
        receipts += [row.receipt for row in page if error_pattern((row.last_error or "")[: len(error)]) == error_shape]
        before = position(page[-1])
        if len(receipts) > MAX_BY_ERROR:
            message = (
                f"More than {MAX_BY_ERROR:,} dead letters have this error. "
                "Replay the whole source or a shorter time range."
            )
            raise Problem(422, "too_many", message)
    return tuple(receipts)
