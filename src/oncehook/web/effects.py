"""Pages of effects, newest first, and replays of failed effects, shared by the dashboard and the API.

As in `listing.py`, the time of a query does not grow with the number of effects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.effect import EffectFilter, EffectState, StoredEffect
from oncehook.store.protocols import EffectStore
from oncehook.web.page import Context, Problem, check_texts, parse_id, principal

PAGE = 50
WINDOW = 20_000
SECONDS = 1.0


class EffectFilterForm(msgspec.Struct, frozen=True):
    """A filter as text fields, from a URL or a form. Empty fields are ignored."""

    status: str = ""
    source: str = ""
    target: str = ""
    key: str = ""
    receipt: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "EffectFilterForm":
        return cls(**{name: str(values.get(name) or "").strip() for name in cls.__struct_fields__})

    def parse(self) -> EffectFilter:
        """Return the filter. Raises Problem if a field is not valid."""
        fields = self.non_empty()
        check_texts(fields)
        if self.status and self.status not in set(EffectState):
            raise Problem(422, "bad_filter", f"status must be one of {', '.join(EffectState)}.")
        receipt = parse_id(self.receipt) if self.receipt else None
        if self.receipt and receipt is None:
            raise Problem(422, "bad_filter", "receipt must be a number.")
        return EffectFilter(**{**fields, "receipt": receipt})  # type: ignore[arg-type]

    def non_empty(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class EffectPage:
    """A page of effects. `next` is the cursor of the next page; `is_partial` means that the search ran out of time."""

    rows: list[StoredEffect]
    next: int | None = None
    is_partial: bool = False


async def list_effects(
    effects: EffectStore, condition: EffectFilter, before: int | None, limit: int = PAGE
) -> EffectPage:
    """Return the page before `before`. A filter without an index is searched in windows, for up to SECONDS seconds."""
    if condition == EffectFilter() or condition.receipt is not None or condition.status == EffectState.FAILED.value:
        return _page(await effects.find(condition, limit=limit + 1, before=before), limit)
    deadline = SYSTEM.monotonic() + SECONDS
    if before is None:
        newest = await effects.find(EffectFilter(), limit=1)
        before = newest[0].id + 1 if newest else 0
    rows: list[StoredEffect] = []
    while before > 0:
        end = max(0, before - WINDOW)
        rows += await effects.find(condition, limit=limit + 1 - len(rows), before=before, down_to=end)
        if len(rows) > limit:
            return _page(rows, limit)
        if SYSTEM.monotonic() > deadline and end:
            return EffectPage(rows, end, is_partial=True)
        before = end
    return EffectPage(rows)


def _page(rows: list[StoredEffect], limit: int) -> EffectPage:
    return EffectPage(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


def read_cursor(text: str | None) -> int | None:
    if not text:
        return None
    cursor = parse_id(text)
    if cursor is None:
        raise Problem(400, "bad_cursor", "The cursor is not valid. Start at the first page.")
    return cursor


async def find_effect(context: Context, request: Request) -> StoredEffect:
    id = parse_id(request.path_params["effect"])
    rows = await context.store.effects.find(EffectFilter(ids=(id,)), limit=1) if id is not None else []
    if not rows:
        raise Problem(404, "not_found", "Effect not found. It does not exist, or its retention period has ended.")
    return rows[0]


async def replay_effect(context: Context, request: Request) -> int:
    """Replay one failed effect and return its id. Raises Problem if it cannot be replayed."""
    row = await find_effect(context, request)
    if not await context.store.effects.replay([row.id], principal(request).name):
        why = "its arguments were erased" if row.status == EffectState.FAILED.value else f"it is {row.status}"
        raise Problem(409, "not_replayable", f"The effect was not replayed: {why}.")
    wake_relay(context)
    return row.id


def wake_relay(context: Context) -> None:
    if context.runtime.relay is not None:
        context.runtime.relay.wake()


def failed_effects(form: EffectFilterForm) -> EffectFilter:
    """The filter that selects the failed effects of the form's source and target."""
    return EffectFilterForm(source=form.source, target=form.target, status=EffectState.FAILED.value).parse()
