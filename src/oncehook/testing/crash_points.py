"""Named points in the life of an event at which a test stops the process, cancels its task or cuts its connections.

Nothing in the code of Oncehook knows these points. `crash_hooks` wraps the verbs of the store, the statements of the
database drivers, and the calls to the outside, in a process that a test started. Without it, a point costs nothing.
"""

from dataclasses import dataclass

BEFORE, SENT, AFTER = "before", "sent", "after"
"""When a point is reached: before the call, after its bytes are sent and before its reply, or after its reply."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is sent to the database: a query of `store/sql/`, by its name, or COMMIT."""

    query: str
    when: str
    follows: str | None = None  # only after this query has changed rows, in the same transaction
    needs_rows: bool = False  # only if the statement returned rows


@dataclass(frozen=True, slots=True)
class Call:
    """A function, as `module:name` or `module:Class.method`."""

    path: str
    when: str
    needs_result: bool = False  # only if the call returned something
    contains: str = ""  # only if the text of its arguments contains this


@dataclass(frozen=True, slots=True)
class InHandler:
    """A step of the test's own handler, which is user code."""

    step: str


Where = Statement | Call | InHandler | str
"""Where a point is. A text says why there is no such point."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A point, where it is on each database, and which part of Oncehook reaches it."""

    name: str
    part: str
    sentence: str
    postgres: Where
    sqlite: Where

    def where(self, dialect: str) -> Where:
        """Where the point is on a database."""
        return self.postgres if dialect == "postgres" else self.sqlite


ONE_STATEMENT = "One statement claims and commits: R7, R10 and R11 are its points."
OWN_MESSAGE = "The processed status and COMMIT are one message: W12 and W13 are its points."
NO_NOTIFY = "SQLite has no notifications; workers poll."
NO_REDIS = "Only with `redis`; tests/faults/test_fast_path_faults.py stops, empties and replaces it."
NO_BROKER = "Only with an intake; tests/faults/test_intake_kill.py kills the process around each publish."
NO_QUEUE = "Only with a work queue; tests/faults/test_work_queue.py drops and repeats its messages."
SAME_ROW = "An effect key and its outbox row are one row: W9 is its point."
ONE_LEASE = "One statement leases and commits: W1 and W3 are its points."

STEPS = "oncehook.receiver.steps"
PROTOCOL = "oncehook.receiver.limited_protocol:LimitedProtocol"
SETTLES = (
    "oncehook.store.postgres.leases:PostgresLeaseStore.settle",
    "oncehook.store.sqlite.leases:SqliteLeaseStore.settle",
)
LEASES, EFFECTS = "oncehook.store.leases:SqlLeaseStore", "oncehook.store.effects:SqlEffectStore"
PRUNING, OPERATIONS = "oncehook.store.retention:SqlPruning", "oncehook.store.operations:SqlOperationStore"


def _point(name: str, part: str, sentence: str, postgres: Where, sqlite: Where | None = None) -> CrashPoint:
    """Make a point. It is in the same place on both databases unless `sqlite` is passed."""
    return CrashPoint(name, part, sentence, postgres, postgres if sqlite is None else sqlite)


def _settle(when: str, contains: str) -> tuple[Where, Where]:
    return Call(SETTLES[0], when, contains=contains), Call(SETTLES[1], when, contains=contains)


CRASH_POINTS: tuple[CrashPoint, ...] = (
    _point("R0", "receive", "The head of a request has arrived.", Call(f"{STEPS}:check_request", BEFORE)),
    _point(
        "R1", "receive", "A part of the body has arrived.", Call("oncehook.receiver.request:_read_remaining", BEFORE)
    ),
    _point("R2", "receive", "The body is complete.", Call(f"{STEPS}:check_body", BEFORE)),
    _point("R3", "receive", "The delivery is verified.", Call(f"{STEPS}:Receiver.verify", AFTER)),
    _point("R4", "receive", "The event is read and has its id.", Call("oncehook.receiver.claim:Claimer.claim", BEFORE)),
    _point("R5", "receive", "The fast path has queried Redis.", NO_REDIS),
    _point("R6", "receive", "The claim has begun its transaction.", ONE_STATEMENT, Statement("claim", BEFORE)),
    _point("R7", "receive", "The INSERT of the receipt is sent.", Statement("claim", SENT), Statement("claim", AFTER)),
    _point(
        "R8",
        "receive",
        "The receipt is inserted, and its payload is not.",
        ONE_STATEMENT,
        Statement("claim_payload", BEFORE),
    ),
    _point(
        "R9",
        "receive",
        "The event is stored, and other processes are about to be notified.",
        Call("oncehook.store.postgres.wakeups:PostgresWakeupStore.notify", BEFORE),
        NO_NOTIFY,
    ),
    _point(
        "R10",
        "receive",
        "The COMMIT of the claim is sent.",
        Statement("claim", SENT),
        Statement("COMMIT", BEFORE, follows="claim"),
    ),
    _point(
        "R11",
        "receive",
        "The claim is committed, and the reply of the database is lost.",
        Statement("claim", AFTER),
        Statement("COMMIT", AFTER, follows="claim"),
    ),
    _point(
        "R12",
        "receive",
        "The receiver knows that the claim is committed.",
        Call("oncehook.store.postgres.claims:PostgresClaimStore.insert", AFTER),
        Call("oncehook.store.sqlite.claims:SqliteClaimStore.insert", AFTER),
    ),
    _point("R13", "receive", "Redis has the receipt.", NO_REDIS),
    _point("R14", "receive", "The delivery is published to a broker.", NO_BROKER),
    _point("R15", "receive", "The response is about to be written.", Call(f"{PROTOCOL}.answer", BEFORE)),
    _point("R16", "receive", "A part of the response is written.", Call(f"{PROTOCOL}.answer", SENT)),
    _point("R17", "receive", "The response is written, and the connection is open.", Call(f"{PROTOCOL}.answer", AFTER)),
    _point("W0", "work", "The worker is about to lease.", Statement("lease", BEFORE)),
    _point("W1", "work", "The lease is sent.", Statement("lease", SENT), Statement("lease", AFTER)),
    _point("W2", "work", "The COMMIT of the lease is sent.", ONE_LEASE, Statement("COMMIT", BEFORE, follows="lease")),
    _point(
        "W3",
        "work",
        "The event is leased, and the reply of the database is lost.",
        Statement("lease", AFTER, needs_rows=True),
        Statement("COMMIT", AFTER, follows="lease"),
    ),
    _point("W4", "work", "The worker has the event.", Call(f"{LEASES}.take", AFTER, needs_result=True)),
    _point("W5", "work", "The handler starts.", InHandler("started")),
    _point("W6", "work", "The handler has written in its transaction.", InHandler("wrote")),
    _point("W7", "work", "The handler calls another service.", InHandler("calls")),
    _point("W8", "work", "The other service has done its work.", InHandler("called")),
    _point("W9", "work", "The effect is recorded in the handler's transaction.", Statement("record_effects", AFTER)),
    _point("W10", "work", "The outbox has the row.", SAME_ROW),
    _point(
        "W11",
        "work",
        "The processed status is written and not committed.",
        OWN_MESSAGE,
        Statement("settle", AFTER),
    ),
    _point(
        "W12",
        "work",
        "The COMMIT of the handler's transaction is sent.",
        Statement("finish", SENT),
        Statement("COMMIT", BEFORE, follows="settle"),
    ),
    _point(
        "W13",
        "work",
        "The work is committed, and the reply of the database is lost.",
        Statement("finish", AFTER),
        Statement("COMMIT", AFTER, follows="settle"),
    ),
    _point(
        "W14",
        "work",
        "The worker knows that the work is committed.",
        Call("oncehook.worker.process:Processor._record", BEFORE),
    ),
    _point("W15", "work", "The queue has the acknowledgement of the message.", NO_QUEUE),
    _point(
        "W16",
        "work",
        "The heartbeat extends the lease.",
        Call("oncehook.store.postgres.heartbeat:PostgresHeartbeatConnection.extend", BEFORE),
        Call("oncehook.store.sqlite.heartbeat:SqliteHeartbeatConnection.extend", BEFORE),
    ),
    _point("W17", "work", "The retry is sent.", Statement("settle", SENT), Statement("settle_attempts", AFTER)),
    _point(
        "W18",
        "work",
        "The retry is committed.",
        Statement("settle", AFTER),
        Statement("COMMIT", AFTER, follows="settle_attempts"),
    ),
    _point("W19", "work", "The event is about to become a dead letter.", *_settle(BEFORE, "State.FAILED")),
    _point("S1", "rescue", "The expired leases are read.", Call(f"{LEASES}.expired", AFTER, needs_result=True)),
    _point("S2", "rescue", "An expired lease is about to be settled.", *_settle(BEFORE, "crashed=True")),
    _point("S3", "rescue", "An expired lease is settled.", *_settle(AFTER, "crashed=True")),
    _point("P1", "prune", "The old receipts are read.", Call(f"{PRUNING}._delete", BEFORE)),
    _point(
        "P2",
        "prune",
        "The payloads are deleted and the receipts are not.",
        Statement("prune_payloads", AFTER),
    ),
    _point("P3", "prune", "The deletion is committed.", Call(f"{PRUNING}._delete", AFTER)),
    _point("O1", "relay", "The effect is leased.", Call(f"{EFFECTS}.lease", AFTER, needs_result=True)),
    _point("O2", "relay", "The effect is about to run.", Call("oncehook.effects.relay:call", BEFORE)),
    _point("O3", "relay", "The effect has run.", Call("oncehook.effects.relay:call", AFTER)),
    _point(
        "O4",
        "relay",
        "The result of the effect is sent.",
        Statement("settle_effects", SENT),
        Call(f"{EFFECTS}.settle", BEFORE),
    ),
    _point("O5", "relay", "The result of the effect is committed.", Call(f"{EFFECTS}.settle", AFTER)),
    _point("D1", "replay", "The receipts of the replay are read.", Call(f"{OPERATIONS}.replay", BEFORE)),
    _point("D2", "replay", "The receipts are replayed, and the audit row is not written.", Statement("replay", AFTER)),
    _point("D3", "replay", "The replay is committed.", Call(f"{OPERATIONS}.replay", AFTER)),
    _point(
        "M1",
        "migrate",
        "The migration has its lock.",
        Statement("create_migrations", BEFORE),
    ),
    _point(
        "M2",
        "migrate",
        "The migration has run and is not recorded.",
        Statement("record_migration", BEFORE),
    ),
    _point(
        "M3",
        "migrate",
        "The migration is committed.",
        Call("oncehook.store.postgres.pool:PostgresPool.create_partitions", BEFORE),
        Statement("COMMIT", AFTER, follows="record_migration"),
    ),
)
"""Every point, in the order of an event's life."""


def find(name: str) -> CrashPoint:
    """Return the point of this name."""
    return next(point for point in CRASH_POINTS if point.name == name)
