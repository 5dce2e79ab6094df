"""One run of PgQueuer with the same work: each job commits one insert, and PgQueuer records the job's status.

It is set up as its documentation recommends: jobs are enqueued in bulk and dequeued a hundred at a time, handlers use a
pool, and uvloop is the event loop. Only the pool limits concurrency: PgQueuer's own limit would make it wait for its
next poll of the queue.
"""

import argparse
import asyncio
import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.stopwatch import BODY, INSERT, LEDGER, Stopwatch


async def main(arguments: argparse.Namespace) -> None:
    async with (
        asyncpg.create_pool(arguments.database, min_size=2, max_size=6) as queue_pool,
        asyncpg.create_pool(arguments.database, min_size=1, max_size=arguments.concurrency) as pool,
    ):
        await pool.execute(LEDGER)
        queue = PgQueuer.from_asyncpg_pool(queue_pool)
        queries = Queries(queue.connection)
        await queries.install()
        for start in range(0, arguments.events, 500):
            count = min(500, arguments.events - start)
            await queries.enqueue(["paid"] * count, [BODY] * count, [0] * count)
        watch = Stopwatch(arguments.events, await pool.fetchval("SELECT pg_backend_pid()"))

        @queue.entrypoint("paid")  # type: ignore[untyped-decorator]
        async def paid(job: Job) -> None:
            if arguments.transaction:
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute(INSERT, f"evt_{job.id}", f"in_{job.id}")
            else:
                await pool.execute(INSERT, f"evt_{job.id}", f"in_{job.id}")
            watch.count()

        running = asyncio.create_task(queue.run(batch_size=arguments.batch_size))
        await watch.finished.wait()
        figures = watch.stop()  # not waiting for the status of its last batch, which favors PgQueuer
        queue.shutdown.set()
        await running
        figures["rows"] = await pool.fetchval("SELECT count(*) FROM ledger")
        figures["rows"] -= await pool.fetchval("SELECT count(*) FROM pgqueuer")
    print(json.dumps(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument(
        "--transaction", action="store_true", help="run the insert in a transaction, as a handler with two writes needs"
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(parser.parse_args()))
