"""The statement that makes events processed in a handler's own transaction, as text: it is part of a longer message."""

from collections.abc import Mapping, Sequence

from oncehook.model.receipt import Settled

LEASE_LOST = "OH001"
TRANSACTION_REPLACED = "OH002"
STATEMENTS_GONE = "OH003"
"""Errors that `webhook_finish` raises in PostgreSQL."""


def finish_statement(sql: Mapping[str, str], settled: Sequence[Settled], *, cleans: bool, guarded: bool) -> str:
    """The statement that makes them processed. They are of one handler, and ran together."""
    first = settled[0]
    values = {
        "handler": literal(first.handler),
        "version": literal(first.version),
        "seconds": "NULL" if first.seconds is None else first.seconds,
        "cleans": cleans,
        "guarded": guarded,
    }
    if len(settled) == 1:
        return sql["finish"].format(receipt=first.receipt, lease=first.lease, **values)
    held = sorted((one.receipt, one.lease) for one in settled)  # in the order in which every process locks them
    receipts, leases = (f"'{{{','.join(map(str, numbers))}}}'" for numbers in zip(*held, strict=True))
    return sql["finish_batch"].format(receipts=receipts, leases=leases, **values)


def in_one_line(sql: str) -> str:
    """A message that is sent with every event, without the comments that explain it."""
    return " ".join(line for line in sql.splitlines() if not line.startswith("--"))


def literal(text: str | None) -> str:
    """A text as SQL has it, whatever the session takes for a string; without what PostgreSQL cannot hold."""
    if text is None:
        return "NULL"
    return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\ufffd") + "'"
