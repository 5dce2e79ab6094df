"""A worker of the shop that kills itself with SIGKILL: `python -m examples.shop.tests.killed_worker MOMENT`."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from examples.shop.hooks import inbox
from examples.shop.services import broker, mail_service
from oncehook import SyncEvent


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(function: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    return call


MOMENTS: dict[str, Any] = {
    "in the handler": patch.object(SyncEvent, "publish", die),  # rows are written but not committed
    # The mail is sent, but the effect is not settled
    "after the mail": patch.object(mail_service, "send", then_die(mail_service.send)),
    "after the message": patch.object(broker, "send", then_die(broker.send)),
}


async def work() -> None:
    async with inbox.lifespan():
        await asyncio.sleep(60)


if __name__ == "__main__":
    with MOMENTS[sys.argv[1]]:
        asyncio.run(work())
