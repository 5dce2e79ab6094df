"""A process with a worker that claims from a queue and kills itself at a named point.

python -m tests.faults.intake_worker DATABASE INTAKE POINT
"""

import asyncio
import signal
import sys
from typing import Any

from oncehook import Inbox
from oncehook.intake import kafka, nats
from oncehook.intake.kafka import KafkaBroker
from oncehook.intake.nats import NatsBroker
from tests.faults.relay_worker import die, dies
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET

HEIR = "never"
"""The point of a process that is not killed."""


def arm(broker: Any, point: str) -> None:
    """Let the methods of a broker kill the process at this point."""
    if point == "after the receive":
        broker.receive = dies(broker.receive, before=False)
    elif point == "after the claim":
        broker.ack = dies(broker.ack, before=True)
    elif point == "after the ack":
        ack = broker.ack

        async def ack_and_die(*args: Any) -> None:
            await ack(*args)
            die()

        broker.ack = ack_and_die


async def main(database: str, intake: str, point: str) -> None:
    nats.ACK_SECONDS = 1.0  # the server delivers again after a second
    kafka.SESSION_SECONDS = 5.0
    for broker in (NatsBroker, KafkaBroker):
        arm(broker, point)
    inbox = Inbox(database, migrate="never", poll=0.05, keys=ring("2026a"))
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=intake)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
