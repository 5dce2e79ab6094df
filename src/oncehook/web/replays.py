"""Replays of the events that a filter selects, for the pages and the API."""

import asyncio
from dataclasses import replace

from oncehook.model.receipt import Filter
from oncehook.model.states import State
from oncehook.operations.dead_letters import shape
from oncehook.operations.replay import Replayed, survey
from oncehook.store.rows import Selection
from oncehook.web.listing import Asked, place
from oncehook.web.page import Context, Problem

PAGE_OF_DEAD = 500
MOST_NAMED = 5_000
COUNTING = 15.0
"""Seconds that counting what a replay would do may take."""


async def count(context: Context, selection: Selection) -> Replayed:
    try:
        async with asyncio.timeout(COUNTING):
            return await survey(context.store, selection)
    except TimeoutError:
        told = "This picks more than can be counted now: narrow the filter, by time for instance."
        raise Problem(422, "too_many", told) from None


async def selected(context: Context, asked: Asked) -> Selection:
    wanted = asked.filter()
    if wanted == Filter():
        raise Problem(422, "bad_filter", "Pick what to replay: everything there is would be too easily meant.")
    return Selection(wanted) if not asked.error else Selection(wanted, await _died_of(context, wanted, asked.error))


async def _died_of(context: Context, wanted: Filter, error: str) -> tuple[int, ...]:
    """The dead letters whose error differs from this one only in what it is about."""
    found: list[int] = []
    like, before = shape(error), None
    while page := await context.store.receipts.find(
        replace(wanted, status=State.FAILED.value), limit=PAGE_OF_DEAD, before=before
    ):
        found += [receipt.receipt for receipt in page if shape((receipt.last_error or "")[: len(error)]) == like]
        before = place(page[-1])
        if len(found) > MOST_NAMED:
            told = f"More than {MOST_NAMED:,} died of this: replay all of the source, or a shorter time."
            raise Problem(422, "too_many", told)
    return tuple(found)
