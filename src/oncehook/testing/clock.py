"""Let time pass in tests without waiting.

An inbox uses the clock of its database, which a test cannot change. So `advance` moves all stored times back instead.
The queries, which are the same as in production, then see the time as passed. That holds for every process and
connection on the database, and production code needs no hook for it.
"""

from typing import Any

from oncehook.inbox import Inbox
from oncehook.model.values import duration
from oncehook.testing.deliveries import NOT_RUNNING


async def advance(inbox: Inbox, by: Any) -> None:
    """Let time pass for an inbox: "90s", "2h", "31d", or a number of seconds.

    Retries become due, leases expire and receipts age. It moves every time in the inbox's tables back, including times
    from senders. The clock of the process, which checks signatures, and your own tables do not change. No handler or
    effect may be running during the call.

        await advance(inbox, "31d")
        await prune(inbox)
    """
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    seconds = duration(by)
    await inbox._runtime.store.schema.move_times_back(seconds)
    await inbox.email.rebuild()  # the order of email facts depends on their times
