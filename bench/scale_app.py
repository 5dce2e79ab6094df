"""The handlers of the workers that `bench.scale` starts. The database comes from the environment."""

from typing import Any

from bench.accept import SECRET
from bench.stopwatch import INSERT
from oncehook import Event, Inbox

inbox = Inbox()
inbox.source("stripe", secrets=[SECRET])


@inbox.on("stripe", "invoice.paid")
async def paid(event: Event, tx: Any) -> None:
    await tx.execute(INSERT, event.id, event.object_id)
