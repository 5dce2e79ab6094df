"""What the API takes and answers, as types: checked on the way in, described in the OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oncehook.model.values import LONGEST

StateName = Literal["received", "processing", "processed", "retrying", "failed", "ignored"]
Text = Annotated[str, Meta(max_length=500)]
Cursor = Annotated[str, Meta(max_length=200, description="`next` of the page before.")]
Time = Annotated[str, Meta(max_length=40, description="How long ago (2h, 7d) or when (2026-11-15T03:00:00Z).")]


class EventsQuery(Struct, frozen=True):
    """Which events; all conditions hold together."""

    source: Text = ""
    type: Annotated[str, Meta(max_length=500, description="A pattern with * and ?, or a dotted prefix.")] = ""
    object: Text = ""
    status: StateName | Literal["unhandled", ""] = ""
    since: Time = ""
    until: Time = ""
    search: Annotated[str, Meta(max_length=500, description="An id, an object, or a text in the payload.")] = ""
    cursor: Cursor = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class OverviewQuery(Struct, frozen=True):
    """Over which time."""

    range: Literal["15m", "1h", "24h", "7d"] = "1h"
    source: Text = ""


class AuditQuery(Struct, frozen=True):
    """A page of the audit."""

    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$", description="`next` of the page before.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


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


class Event(Struct):
    """An event, with the same keys wherever it is printed."""

    receipt: int
    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: str | None
    received_at: str
    status: StateName
    attempts: int
    next_attempt_at: str | None
    processed_at: str | None
    failed_at: str | None
    last_error: str | None
    duplicates: int
    correlation_id: str
    delivery_id: str | None
    replays: int


class Events(Struct):
    """A page, newest first. `next` is null at the end; `looked_to` is set where looking stopped for time."""

    events: list[Event]
    next: str | None
    looked_to: str | None


class Delivered(Struct):
    """A delivery of an event that was here before."""

    received_at: str
    delivery_id: str | None
    same_body: bool


class Attempted(Struct):
    """What came of an attempt."""

    number: int
    started_at: str
    ended_at: str
    outcome: str
    error: str | None
    traceback: str | None
    handler: str | None
    version: str | None
    worker: str | None


class ReplayedBy(Struct):
    """A replay."""

    at: str
    actor: str


class Noop(Struct):
    """What a handler asked for and did not get: an effect of before, or a state older than what is known."""

    at: str
    reason: Literal["effect", "stale"]
    scope: str
    key: str


class Entity(Struct):
    """The newest that is known of an entity, and the event that said so."""

    kind: str
    id: str
    state: str | None
    at: str | None
    version: int | None
    is_terminal: bool
    event_id: str
    receipt: int
    updated_at: str


class WholeEvent(Event):
    """An event with all that is known of it. `payload` is the body as JSON, where it is JSON; of its effects the
    newest 100. `entities` are those of its source whose id is its `object_id`.
    """

    payload: Any
    headers: dict[str, str] | None
    deliveries: list[Delivered]
    attempts_history: list[Attempted]
    replays_history: list[ReplayedBy]
    effects: "list[Effect]"
    noops: list[Noop]
    entities: list[Entity]


class Replay(Struct):
    """What a replay did, or would do."""

    matched: int
    replayed: int
    left: dict[str, int]
    run: str | None = None


class Retried(Struct):
    """A waiting retry that is due now."""

    receipt: int
    retried: bool


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


class Erased(Struct):
    """How many payloads went."""

    erased: int


class DeadGroup(Struct):
    """Dead letters that died of the same thing."""

    source: str
    handler: str | None
    last_error: str | None
    receipts: int
    first_received_at: str
    last_received_at: str
    first_failed_at: str
    last_failed_at: str
    last_receipt: int


class Dead(Struct):
    """Dead letters by what went wrong, the largest group first."""

    total: int
    groups: list[DeadGroup]


EffectStateName = Literal["waiting", "performing", "retrying", "done", "failed"]
Number = Annotated[str, Meta(pattern="^[0-9]{0,18}$")]


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


class Finding(Struct):
    """A cause, what shows it, and what to do."""

    cause: str
    shows: str
    remedy: str


class Refused(Struct):
    """A delivery that was refused, and the doctor's word on it; none where no sample of it was kept."""

    at: str
    reason: str
    detail: str
    findings: list[Finding]


class SecretUse(Struct):
    """A secret, by its place in the configuration and a short mark: when it last verified a delivery.

    The place is null for one that is not configured any more.
    """

    secret: int | None
    mark: str
    verified: int
    last_used_at: str | None
    advice: str


class Pause(Struct):
    """Since when a source is paused, who paused it, why, and when it is resumed by itself."""

    at: str
    actor: str
    reason: str | None = None
    until: str | None = None


class PauseFor(Struct):
    """Why a source is paused, and for how long; without `seconds`, until somebody resumes it."""

    reason: Annotated[str, Meta(max_length=500)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] | None = None


class Paused(Struct):
    """Whether a source is paused now."""

    source: str
    paused: bool


class SourceState(Struct):
    """A source: where it is, and how it has been doing. Refusals are those of the process that answers.

    `last_examined` is the last refusal with the doctor's word, where the very last one was refused for another reason.
    """

    source: str
    provider: str
    address: str
    is_verified: bool
    secrets: int
    mode: str
    types: list[str] | None
    dedupe_window: str
    payload_retention: str
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    last_received_at: str | None
    last_refused: Refused | None
    last_examined: Refused | None
    support: Literal["confirmed", "unconfirmed"]
    secrets_used: list[SecretUse]
    paused: Pause | None


class Sources(Struct):
    """Every configured source."""

    sources: list[SourceState]


class Percentiles(Struct):
    """Seconds within which so many of a hundred deliveries were acked."""

    p50: float
    p95: float
    p99: float


class OverviewState(Struct):
    """Rates per bucket, and where everything stands, of all processes. Latencies are those of the last hour."""

    range: str
    bucket_seconds: int
    buckets: list[str]
    received: list[int]
    duplicate: list[int]
    rejected: list[int]
    failed: list[int]
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    accept_seconds: Percentiles | None
    paused: list[str]


class AlertState(Struct):
    """What one target was told of an incident, or is to be."""

    target: str
    word: Literal["opened", "reminder", "recovered"]
    status: Literal["waiting", "sending", "told", "failed"]
    attempts: int
    told_at: str | None
    last_error: str | None


class Incident(Struct):
    """Something that is wrong: the value now and at worst, and since when.

    `below_at` is since when it is below its threshold again, and `closes_at` when it closes if it stays so. `now`,
    `at_worst` and `limit` are `value`, `worst` and `threshold` as text; `summary` is what was told when it opened.
    """

    incident: int
    rule: str
    source: str
    opened_at: str
    title: str
    value: float
    worst: float
    threshold: float
    now: str
    at_worst: str
    limit: str
    summary: str
    remedy: str
    page: str
    below_at: str | None
    closes_at: str | None
    alerts: list[AlertState]


class RuleState(Struct):
    """What a rule measures now, of the source that is nearest to its threshold."""

    rule: str
    is_on: bool
    is_firing: bool
    unit: Literal["number", "seconds"]
    source: str | None
    value: float | None
    threshold: float | None


class AlertsState(Struct):
    """The open incidents, newest first, and every rule."""

    incidents: list[Incident]
    rules: list[RuleState]


class AuditRow(Struct):
    """Something that somebody did."""

    id: int
    at: str
    actor: str
    action: str
    detail: dict[str, Any]


class Audit(Struct):
    """A page, newest first."""

    rows: list[AuditRow]
    next: str | None


class Error(Struct):
    """What was wrong, as a word and as a sentence."""

    code: str
    message: str


class ProblemAnswer(Struct):
    """The answer to whatever was not done."""

    error: Error
