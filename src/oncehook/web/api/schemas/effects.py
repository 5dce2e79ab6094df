"""Effects in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import EffectStateName, Number, Text


class EffectsQuery(Struct, frozen=True):
    """Which effects; all conditions hold together."""

    status: EffectStateName | Literal[""] = ""
    source: Text = ""
    target: Annotated[str, Meta(max_length=500, description="A function, a topic or an address.")] = ""
    key: Text = ""
    receipt: Number = ""
    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="`next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class SelectedEffects(Struct, frozen=True, forbid_unknown_fields=True):
    """Which failed effects to perform again: those of a source, of a target, of both, or all."""

    source: Text = ""
    target: Text = ""
    count: Annotated[int, Meta(ge=0, description="How many a dry run said. Another number now is 409.")] | None = None
    dry_run: bool = False


class Effect(Struct):
    """An effect, with the same keys wherever it is printed. `args` is null once they were pruned or erased."""

    id: int
    scope: str
    key: str
    kind: str
    target: str
    status: EffectStateName
    attempts: int
    created_at: str
    next_attempt_at: str | None
    done_at: str | None
    last_error: str | None
    source: str
    receipt: int
    replays: int
    worker: str | None
    args: Any
    idempotency_key: str


class Effects(Struct):
    """A page, newest first, and how many are in which state, each up to 10,000.

    `next` is null at the end; a page may be partial, where looking stopped for time.
    """

    effects: list[Effect]
    next: str | None
    is_partial: bool
    counts: dict[str, int]


class ReplayedEffects(Struct):
    """How many effects are performed again, and how many have lost their arguments."""

    replayed: int
    left: int
