"""The statement that makes events processed in a handler's own transaction, as text: it is part of a longer message."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from oncehook.model.lease import Settled

_held = attrgetter("receipt", "lease")  # sorted by it, receipts are in the order in which every process locks them

LEASE_LOST = "OH001"
TRANSACTION_REPLACED = "OH002"
"""Errors that `webhook_finish` raises in PostgreSQL."""


def finish_statement(sql: Mapping[str, str], settled: Sequence[Settled], *, resets: bool, guarded: bool | None) -> str:
    """The statement that makes them processed. They are of one handler, and ran together."""
    first, *others = settled if len(settled) == 1 else sorted(settled, key=_held)
    values = {
        "handler": literal(first.handler),
        "version": literal(first.version),
        "seconds": "NULL" if first.seconds is None else first.seconds,
    }
    statement = sql["finish"].format(
        receipt=first.receipt,
        lease=first.lease,
        resets=resets,
        guarded="NULL" if guarded is None else guarded,
        **values,
    )
    if not others:
        return statement
    receipts, leases = (f"'{{{','.join(map(str, numbers))}}}'" for numbers in zip(*map(_held, others), strict=True))
    return f"{statement}; " + sql["finish_others"].format(receipts=receipts, leases=leases, **values)


def in_one_line(sql: str) -> str:
    """A message that is sent with every event, without the comments that explain it."""
    return " ".join(line for line in sql.splitlines() if not line.startswith("--"))


@lru_cache(1000)  # an inbox has few handlers and versions
def literal(text: str | None) -> str:
    """A text as SQL has it, whatever the session takes for a string; without what PostgreSQL cannot hold."""
    if text is None:
        return "NULL"
    return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\ufffd") + "'"
