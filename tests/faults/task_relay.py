"""A process whose relay hands a task over, and that kills itself before the effect is settled.

python -m tests.faults.task_relay DATABASE LIBRARY ADDRESS POINT
"""

import asyncio
import signal
import sys
from typing import Any

from oncehook import Event, Inbox
from oncehook.effects import relay, tasks
from oncehook.effects.tasks import TaskQueue
from tests.faults.relay_worker import HEIR, die
from tests.support.task_queues import client_of, options_of


def arm() -> None:
    """Let the process die after the task queue has taken the task."""
    hand_over = TaskQueue.hand_over

    async def hand_over_and_die(self: TaskQueue, *args: Any, **kwargs: Any) -> None:
        await hand_over(self, *args, **kwargs)
        die()

    TaskQueue.hand_over = hand_over_and_die  # type: ignore[method-assign]
    relay.MARGIN = 1 - tasks.MARGIN - tasks.TASK_TIMEOUT  # its leases expire after a second


async def main(database: str, library: str, address: str, point: str) -> None:
    if point != HEIR:
        arm()
    relay.RESCUE_INTERVAL = 0.1 if point == HEIR else 3600.0
    inbox = Inbox(database, poll="50ms", lease="1s")
    inbox.source("stripe", secrets=["whsec_test"])
    queue, task = client_of(library, address)
    inbox.tasks(queue, **options_of(library))

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        await event.enqueue(task, event.id, 2900)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
