"""Effects in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import EffectStateName, Number, Text


class EffectsQuery(Struct, frozen=True):
    """Filters effects. All conditions must hold."""

    status: EffectStateName | Literal[""] = ""
    source: Text = ""
    target: Annotated[str, Meta(max_length=500, description="A function, a topic or a URL.")] = ""
    key: Text = ""
    receipt: Number = ""
    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="`next` of the previous page.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class SelectedEffects(Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the failed effects to replay: of a source, of a target, of both, or all."""

    source: Text = ""
    target: Text = ""
    count: (
        Annotated[
            int, Meta(ge=0, description="The number that a dry run returned. If it has changed, the response is 409.")
        ]
        | None
    ) = None
    dry_run: bool = False


class Effect(Struct):
    """An effect, with the same keys as in the CLI. `args` is null after pruning or erasure."""

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
    """A page of effects, newest first, and the number of effects by state, each up to 10,000.

    `next` is null on the last page. `is_partial` means that the search ran out of time before the page was full.
    """

    effects: list[Effect]
    next: str | None
    is_partial: bool
    counts: dict[str, int]


class ReplayedEffects(Struct):
    """How many effects were replayed, and how many could not be because their arguments were erased."""

    replayed: int
    left: int
