"""A process whose relay publishes to a broker, and that kills itself before or after the broker's acknowledgement.

python -m tests.faults.broker_worker CONFIG TARGET POINT
"""

import asyncio
import signal
import sys
from typing import Any

from oncehook import Event, Inbox
from oncehook.brokers.pool import Publishers
from oncehook.effects import relay
from tests.faults.relay_worker import HEIR, die


def arm(point: str) -> None:
    """Let a publish kill the process at this point."""
    publish = Publishers.publish

    async def publish_and_die(self: Publishers, *args: Any, **kwargs: Any) -> None:
        if point == "before the publish":
            die()
        await publish(self, *args, **kwargs)
        die()

    Publishers.publish = publish_and_die  # type: ignore[method-assign]


async def main(config: str, target: str, point: str) -> None:
    if point != HEIR:
        arm(point)
        relay.MARGIN = -29.0  # its leases expire after a second
    relay.RESCUE_INTERVAL = 0.1 if point == HEIR else 3600.0
    inbox = Inbox(config=config)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*")
    async def publish(event: Event) -> None:
        await event.publish(target, {"id": event.id})

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with inbox.lifespan():
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
