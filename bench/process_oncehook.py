"""One run of Oncehook's worker, configured as in `oncehook worker`, logging into a file."""

import argparse
import asyncio
import hashlib
import json
import tempfile
from typing import Any

import asyncpg
import uvloop

from bench.stopwatch import BODY, INSERT, LEDGER, Stopwatch
from oncehook import Event, Inbox
from oncehook.model.claim import Claim
from oncehook.observability import signals


async def main(arguments: argparse.Namespace) -> None:
    inbox = Inbox(arguments.database, worker=False, concurrency=arguments.concurrency)
    inbox.source("stripe", secrets=["whsec_bench"])
    connection = await asyncpg.connect(arguments.database)
    watch = Stopwatch(arguments.events, connection.get_server_pid())
    register_handler(inbox, watch, arguments.batch)
    await connection.execute(LEDGER)
    async with inbox.lifespan():
        await accept(inbox, arguments.events)
        inbox._runtime.start_worker()
        await watch.finished.wait()
        assert inbox._runtime.worker is not None
        await inbox._runtime.worker.stop()  # the last status is committed when this returns
        figures = watch.stop()
    unprocessed = await connection.fetchval("SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'")
    figures["rows"] = await connection.fetchval("SELECT count(*) FROM ledger") - unprocessed
    await connection.close()
    print(json.dumps(figures))


def register_handler(inbox: Inbox, watch: Stopwatch, batch: int | None) -> None:
    if batch is None:

        @inbox.on("stripe", "invoice.paid")
        async def paid(event: Event, tx: Any) -> None:
            await tx.execute(INSERT, event.id, event.object_id)
            watch.count()

    else:

        @inbox.on("stripe", "invoice.paid", batch=batch)
        async def paid_many(events: list[Event], tx: Any) -> None:
            await tx.executemany(INSERT, [(event.id, event.object_id) for event in events])
            watch.count(len(events))


async def accept(inbox: Inbox, events: int) -> None:
    headers, fingerprint = '{"content-type":"application/json"}', hashlib.sha256(BODY).digest()
    for start in range(0, events, 500):
        await inbox._runtime.store.claims.insert(
            [
                Claim(
                    source="stripe",
                    provider="stripe",
                    event_id=f"evt_{number:08d}",
                    type="invoice.paid",
                    object_id=f"in_{number}",
                    occurred_at=None,
                    delivery_id=None,
                    correlation_id=None,
                    fingerprint=fingerprint,
                    body=BODY,
                    headers=headers,
                )
                for number in range(start, min(start + 500, events))
            ]
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--batch", type=int)
    with tempfile.TemporaryFile("w") as log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        signals.configure("info", "json", log)
        runner.run(main(parser.parse_args()))
