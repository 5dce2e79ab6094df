"""The guarantees that `oncehook fsck` checks in a database, and the checks, as data.

Each check is a statement in `store/sql/<dialect>/fsck.sql`, or a function of `operations/fsck.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """A guarantee, and the part of it that a check of the database cannot cover."""

    promise: str
    limit: str | None = None


INVARIANTS: dict[str, Invariant] = {
    "I1": Invariant(
        "An acked event is stored with exactly the bytes that its sender sent.",
        "Whether a sender saw the ack: compare with the provider's list of deliveries.",
    ),
    "I2": Invariant(
        "Each effect key is recorded once.",
        "How often a target ran an effect: it can compare idempotency keys.",
    ),
    "I3": Invariant("Effects commit together with the processed status."),
    "I4": Invariant(
        "An event has one receipt for each consumer.",
        "Which delivery of an event was answered first.",
    ),
    "I5": Invariant(
        "Every event finishes eventually.",
        "Events that wait because no process runs or handles them: see `oncehook doctor` and `oncehook stats`.",
    ),
    "I6": Invariant("A worker that has lost its lease changes nothing."),
    "I7": Invariant(
        "An event has no more attempts than its counter says.",
        "The limit of attempts, which is in the code of the handler.",
    ),
    "I8": Invariant("No receipt vanishes: each has one status, and no row belongs to a receipt that does not exist."),
    "I9": Invariant("Every replay is in the audit log."),
    "I10": Invariant(
        "An entity has the state of its newest event, and one event of a serial key runs at a time.",
        "Whether another event was newer: its order is in the code of the handler.",
    ),
    "I11": Invariant(
        "An effect is marked as done only after an attempt.",
        "Whether its target received it.",
    ),
    "I12": Invariant(
        "Nothing of an unfinished event is pruned.",
        "Receipts that were deleted too early: deleted rows leave no trace.",
    ),
    "I13": Invariant(
        "I1 to I4 hold without Redis and brokers.",
        "This needs faults: the tests of the project stop Redis and brokers, and empty them.",
    ),
    "I14": Invariant(
        "A rejected request leaves nothing but a few small samples.",
        "Whether a stored event was verified: signatures are not stored.",
    ),
    "I15": Invariant("There is no ack while an event cannot be stored.", "Acks are not stored."),
    "I16": Invariant("Memory, files and connections are limited.", "They belong to the process, not to the database."),
    "I17": Invariant("A process that stops leaves no expired lease."),
    "I18": Invariant("A delivery of a known event with another body is flagged."),
    "schema": Invariant(
        "The database has every table, column, index, constraint and trigger of its migrations, in force.",
        "Changed definitions of objects that kept their names.",
    ),
}

RESTORE = "Restore these receipts from a backup, or ask their provider to deliver the events again."
REPORT = "Report it as a bug, with the lines of this report and the log of the worker. Change no row before."


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the guarantees that it is evidence for, the table that it reads, and what a violation means."""

    name: str
    invariants: tuple[str, ...]
    table: str | None  # None: it reads no table in windows
    sentence: str
    remedy: str


CHECKS: tuple[Check, ...] = (
    Check(
        "payload_missing",
        ("I1", "I12"),
        "receipts",
        "An event that is not finished has no payload, so it cannot be handled.",
        RESTORE,
    ),
    Check(
        "state",
        ("I6", "I8"),
        "receipts",
        "The columns of a receipt contradict its status: no transition leads there.",
        "Find out who changed the row. If it was no person and no other program, report it as a bug.",
    ),
    Check(
        "lease_missing",
        ("I5",),
        "receipts",
        "A receipt is processing without a lease, so no worker ever rescues it.",
        "Set its status to received and its attempts to 0 in SQL, and report it as a bug.",
    ),
    Check(
        "lease_expired",
        ("I5", "I17"),
        "receipts",
        "A lease expired more than ten minutes ago, and no running process that handles the event has rescued it.",
        "Look for errors of the rescue in the logs of the workers, then restart them.",
    ),
    Check(
        "overtaken",
        ("I5",),
        "receipts",
        "An event has been due for an hour, although later events of its type were handled.",
        "Run `oncehook show` for the event and look for errors in the logs of the workers.",
    ),
    Check(
        "attempts",
        ("I6", "I7"),
        "receipts",
        "An attempt is recorded twice, or has a higher number than the receipt counts.",
        REPORT,
    ),
    Check(
        "unique",
        ("I4",),
        "receipts",
        "A receipt is missing from the unique index, or an event has several receipts for one consumer.",
        "Run REINDEX on webhook_receipts. If it fails, remove the receipts that were not handled, and run it again.",
    ),
    Check(
        "copy",
        ("I8",),
        "receipts",
        "A receipt of a consumer does not lead to the receipt of its event, so it has no payload.",
        RESTORE,
    ),
    Check("replays", ("I9",), "receipts", "A receipt was replayed more often than the audit log says.", REPORT),
    Check(
        "bodies",
        ("I1",),
        "bodies",
        "A stored payload is not what was received: its bytes, its object or its encryption is damaged or missing.",
        RESTORE,
    ),
    Check(
        "payload_orphan",
        ("I8", "I14"),
        "payloads",
        "A payload has no receipt, or is stored under another day than its receipt.",
        "Find out who changed the receipt. Delete the payload if no receipt needs it.",
    ),
    Check(
        "payload_object",
        ("I1", "I12"),
        "payloads",
        "A payload names an object that the pruner may delete, because no row reserves it.",
        "Stop `oncehook prune` and the workers that prune, and report it as a bug.",
    ),
    Check(
        "attempt_orphan",
        ("I8",),
        "attempts",
        "An attempt belongs to a receipt that does not exist, although pruning deletes both together.",
        RESTORE,
    ),
    Check(
        "key_orphan",
        ("I8", "I4"),
        "keys",
        "A unique key belongs to a receipt that does not exist, so a delivery with this key cannot be stored.",
        "Delete the row of webhook_keys, and ask the provider to deliver the event again.",
    ),
    Check(
        "noop_orphan",
        ("I8",),
        "noops",
        "A noop belongs to a receipt that does not exist, although pruning deletes both together.",
        RESTORE,
    ),
    Check(
        "flag",
        ("I18",),
        "deliveries",
        "A duplicate has another body than its event and is not flagged, or is flagged although the bodies are equal.",
        REPORT,
    ),
    Check(
        "effect_state",
        ("I2", "I11"),
        "effects",
        "The columns of an effect contradict its status, or it is done without an attempt.",
        "Find out who changed the row. If it was no person and no other program, report it as a bug.",
    ),
    Check(
        "effect_expired",
        ("I5", "I11"),
        "effects",
        "The lease of an effect expired more than ten minutes ago, and no relay has rescued it.",
        "Start a process with the function of this effect, or look for errors of the relay in its logs.",
    ),
    Check(
        "effect_unprocessed",
        ("I3",),
        "effects",
        "An effect was committed, and the event that requested it is not processed.",
        REPORT,
    ),
    Check(
        "effect_orphan",
        ("I2", "I8"),
        "effects",
        "An effect belongs to a receipt that does not exist, and pruning did not delete that receipt.",
        RESTORE,
    ),
    Check(
        "effect_unique",
        ("I2",),
        "effects",
        "An effect is missing from the unique index, or several effects have one key.",
        "Run REINDEX on webhook_effects. If it fails, remove the effects that did not run, and run it again.",
    ),
    Check(
        "entity",
        ("I10",),
        "entities",
        "An entity names a receipt of another event, or an event that is not processed.",
        REPORT,
    ),
    Check(
        "serial", ("I10",), None, "Two receipts of one serial key are processing at the same time.", REPORT
    ),
    Check(
        "rejections",
        ("I14",),
        None,
        "A source has more or larger samples of rejected requests than the receiver keeps.",
        "Find out who writes to webhook_rejections. The rows can be deleted.",
    ),
    Check(
        "partitions",
        ("I1",),
        None,
        "A partition of payloads is not attached, so its events seem to have no payload.",
        "Attach it to webhook_payloads with ATTACH PARTITION and the bounds of its day.",
    ),
    Check(
        "schema",
        ("schema", "I4", "I12"),
        None,
        "The schema differs from the one that the migrations create.",
        "Create the missing object from the output of `oncehook schema`; run REINDEX on an index that is not valid.",
    ),
)  # fmt: skip
