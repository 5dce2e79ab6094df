"""Replays and rehearsals in requests and responses."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.web.api.schemas.values import StateName, Text, Time


class ReplaySelection(Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the events to replay. At least one filter field is required."""

    source: Text = ""
    tenant: Text = ""
    consumer: Text = ""
    type: Text = ""
    object: Text = ""
    status: StateName | Literal[""] = ""
    since: Time = ""
    until: Time = ""
    search: Text = ""
    error: Annotated[str, Meta(max_length=2000, description="Selects dead letters with a similar error.")] = ""
    rate: Annotated[float, Meta(gt=0, description="Maximum events per second that return to the queue.")] | None = None
    count: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="The number that a dry run returned. Required for more than one event.",
            ),
        ]
        | None
    ) = None
    dry_run: bool = False


class Replay(Struct):
    """The result of a replay or of its dry run."""

    matched: int
    replayed: int
    left: dict[str, int]
    run: str | None = None


class RunState(Struct):
    """The progress of a bulk replay."""

    run: str
    actor: str
    state: Literal["running", "done", "stopped"]
    matched: int
    looked_at: int
    replayed: Annotated[int, Meta(description="How many returned to the queue.")]
    handled: int
    failed: int
    waiting: int
    left: dict[str, int]
    error: str | None
    started_at: str | None


class RehearsedStatement(Struct):
    """A statement that the handler ran."""

    sql: str
    args: list[str]
    rows: int | None
    error: str | None
    undone: bool


class RehearsedEffect(Struct):
    """An effect that the handler requested. If it is not `new`, it would not be recorded again."""

    key: str
    kind: str
    target: str
    args: Any
    new: bool | None
    status: str | None


class Rehearsed(Struct):
    """What the handler did before everything was rolled back."""

    receipt: int
    handler: str | None
    error: str | None
    statements: list[RehearsedStatement]
    effects: list[RehearsedEffect]
    stale: list[str]
    repeated: bool
