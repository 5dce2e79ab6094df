"""Lists of effects, newest first, that stay quick however many there are, as those of events do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.effect import EffectFilter, EffectState, StoredEffect
from oncehook.store.protocols import EffectStore
from oncehook.web.page import Context, Problem, check_texts, number, principal

PAGE = 50
WINDOW = 20_000
SECONDS = 1.0


class Asked(msgspec.Struct, frozen=True):
    """A filter as it is asked for: texts only, and empty ones count for nothing."""

    status: str = ""
    source: str = ""
    target: str = ""
    key: str = ""
    receipt: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Asked":
        return cls(**{name: str(given.get(name) or "").strip() for name in cls.__struct_fields__})

    def filter(self) -> EffectFilter:
        """Raises Problem for what cannot be meant."""
        given = self.given()
        check_texts(given)
        if self.status and self.status not in set(EffectState):
            raise Problem(422, "bad_filter", f"status is not one of {', '.join(EffectState)}.")
        receipt = number(self.receipt) if self.receipt else None
        if self.receipt and receipt is None:
            raise Problem(422, "bad_filter", "receipt is not a number.")
        return EffectFilter(**{**given, "receipt": receipt})  # type: ignore[arg-type]

    def given(self) -> dict[str, str]:
        """Only what was asked for."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class Listing:
    """A page: what was found, the id to go on before, and whether looking stopped for time and not for room."""

    rows: list[StoredEffect]
    next: int | None = None
    is_partial: bool = False


async def list_effects(effects: EffectStore, wanted: EffectFilter, before: int | None, limit: int = PAGE) -> Listing:
    """The next page. What an index leads to is asked for as it is, everything else in windows, for a second."""
    if wanted == EffectFilter() or wanted.receipt is not None or wanted.status == EffectState.FAILED.value:
        return _page(await effects.find(wanted, limit=limit + 1, before=before), limit)
    deadline = SYSTEM.monotonic() + SECONDS
    if before is None:
        newest = await effects.find(EffectFilter(), limit=1)
        before = newest[0].id + 1 if newest else 0
    found: list[StoredEffect] = []
    while before > 0:
        end = max(0, before - WINDOW)
        found += await effects.find(wanted, limit=limit + 1 - len(found), before=before, down_to=end)
        if len(found) > limit:
            return _page(found, limit)
        if SYSTEM.monotonic() > deadline and end:
            return Listing(found, end, is_partial=True)
        before = end
    return Listing(found)


def _page(found: list[StoredEffect], limit: int) -> Listing:
    return Listing(found[:limit], found[limit - 1].id if len(found) > limit else None)


def read_cursor(text: str | None) -> int | None:
    if not text:
        return None
    found = number(text)
    if found is None:
        raise Problem(400, "bad_cursor", "The cursor is not one of ours: start at the first page.")
    return found


async def find(context: Context, request: Request) -> StoredEffect:
    named = number(request.path_params["effect"])
    found = await context.store.effects.find(EffectFilter(ids=(named,)), limit=1) if named is not None else []
    if not found:
        raise Problem(404, "not_found", "There is no such effect: it was never here, or its time is over.")
    return found[0]


async def try_again(context: Context, request: Request) -> int:
    """Have one failed effect performed again, or say why not."""
    row = await find(context, request)
    if not await context.store.effects.replay([row.id], principal(request).name):
        why = "its arguments were erased" if row.status == EffectState.FAILED.value else f"it is {row.status}"
        raise Problem(409, "not_replayable", f"It was not replayed: {why}.")
    wake(context)
    return row.id


def wake(context: Context) -> None:
    if context.runtime.relay is not None:
        context.runtime.relay.wake()


def selected(asked: Asked) -> EffectFilter:
    """The failed ones of a source and a target."""
    return Asked(source=asked.source, target=asked.target, status=EffectState.FAILED.value).filter()
