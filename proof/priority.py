"""Starts a command with a priority, which the processes that it starts inherit.

python -m proof.priority 19 COMMAND

It is the leader of a session. Linux shares the processor first between sessions and then between the processes of each,
if `sched_autogroup_enabled` is set, so the priority of a process alone would change nothing for PostgreSQL, whose
processes have their own sessions.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

LOWEST = 19


def set_priority(nice: int) -> None:
    """Lower the priority of this process and its session. With the lowest, they run only when no other process does."""
    os.nice(nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))
    if nice == LOWEST and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    set_priority(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  # a command of parts.py
