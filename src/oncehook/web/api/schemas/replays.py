"""Replays and rehearsals in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import StateName, Text, Time


class Selected(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events to replay: a filter, and never an empty one."""

    source: Text = ""
    type: Text = ""
    object: Text = ""
    status: StateName | Literal[""] = ""
    since: Time = ""
    until: Time = ""
    search: Text = ""
    error: Annotated[str, Meta(max_length=2000, description="Dead letters whose error has the shape of this one.")] = ""
    rate: Annotated[float, Meta(gt=0, description="How many return to the queue a second, at most.")] | None = None
    count: (
        Annotated[
            int, Meta(ge=0, description="How many a dry run said: required for more than one. Another number is 409.")
        ]
        | None
    ) = None
    dry_run: bool = False


class Replay(Struct):
    """What a replay did, or would do."""

    matched: int
    replayed: int
    left: dict[str, int]
    run: str | None = None


class RunState(Struct):
    """A replay of many, as it stands."""

    run: str
    actor: str
    state: Literal["running", "done", "stopped"]
    matched: int
    looked_at: int
    replayed: Annotated[int, Meta(description="How many went back to the queue.")]
    handled: int
    failed: int
    waiting: int
    left: dict[str, int]
    error: str | None
    started_at: str | None


class RehearsedStatement(Struct):
    """A statement that a handler ran."""

    sql: str
    args: list[str]
    rows: int | None
    error: str | None
    undone: bool


class RehearsedEffect(Struct):
    """An effect that a handler asked for; one that is not new would not be recorded again."""

    key: str
    kind: str
    target: str
    args: Any
    new: bool | None
    status: str | None


class Rehearsed(Struct):
    """What a handler would do; all of it was rolled back."""

    receipt: int
    handler: str | None
    error: str | None
    statements: list[RehearsedStatement]
    effects: list[RehearsedEffect]
    stale: list[str]
    repeated: bool
