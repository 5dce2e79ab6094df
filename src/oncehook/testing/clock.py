"""Time for tests, without waiting for it.

An inbox lives by its database's clock, which no test can turn. So everything that is recorded is moved back instead: to
every query, which stays exactly the one of production, that is as if so much time had passed. It holds for each process
and each connection on that database, and costs nothing where it is not used.
"""

from typing import Any

from oncehook.inbox import Inbox
from oncehook.model.values import duration
from oncehook.testing.deliveries import NOT_RUNNING


async def advance(inbox: Inbox, by: Any) -> None:
    """Let time pass for an inbox: "90s", "2h", "31d", or seconds. Retries come due, leases run out, receipts age.

    Every time in the inbox's tables moves back by so much, those that a sender wrote too; the process's own clock, by
    which signatures are checked, and your own tables stay. Nothing may be at work meanwhile.
    """
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    seconds = duration(by)
    await inbox._runtime.store.schema.move_times_back(seconds)
    await inbox.email.rebuild()  # the order of facts has their times in it
