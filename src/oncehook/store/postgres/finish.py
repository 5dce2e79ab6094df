"""The statement that settles events as processed in their handler's transaction.

It is built as text, because it is part of a longer message that also commits.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from oncehook.model.lease import Settled

_held = attrgetter("receipt", "lease")  # every process locks receipts in this order

LEASE_LOST = "OH001"
TRANSACTION_REPLACED = "OH002"
"""Error codes that `webhook_finish` raises in PostgreSQL."""


def finish_statement(sql: Mapping[str, str], settled: Sequence[Settled], *, resets: bool, guarded: bool | None) -> str:
    """Return the statement that settles events as processed. All were handled by one call of one handler."""
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
    """Remove comments and line breaks from a message that is sent with every event."""
    return " ".join(line for line in sql.splitlines() if not line.startswith("--"))


@lru_cache(1000)  # an inbox has few handlers and versions
def literal(text: str | None) -> str:
    """Return a text as an SQL literal that is valid under all session settings. Replace NUL."""
    if text is None:
        return "NULL"
    return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\ufffd") + "'"
