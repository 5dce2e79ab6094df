"""A worker of a Django project: `python -m tests.faults.django_worker DATABASE LEASE [kill]`, which prints `ready`.

With `kill`, the process kills itself inside the handler, after the handler's writes.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from django.db import transaction

from tests.support.django_project import using_database
from tests.support.django_shop.models import Invoice


def register(inbox: Any, *, kills: bool) -> None:
    @inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        Invoice.objects.create(number=f"{event.id}-{event.attempt}")
        with transaction.atomic():
            Invoice.objects.create(number=f"{event.id}-{event.attempt}-in-a-savepoint")
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(inbox: Any) -> None:
    async with inbox.lifespan():
        inbox._runtime.start_worker()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    address, lease, *options = sys.argv[1:]
    os.environ["ONCEHOOK_LEASE"] = f"{lease}s"
    with using_database(address) as inbox:
        register(inbox, kills="kill" in options)
        asyncio.run(main(inbox))
