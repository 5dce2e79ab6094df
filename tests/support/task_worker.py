"""The worker of a task library, as its own process.

python -m tests.support.task_worker LIBRARY ADDRESS
"""

import asyncio
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.support import task_programs


def run_celery(address: str) -> None:
    app, _ = task_programs.make_celery(address)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    app.worker_main(["worker", "--pool", "solo", *quiet])


def run_dramatiq(address: str) -> None:
    import dramatiq

    broker, _ = task_programs.make_dramatiq(address)
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    worker.stop()


def run_rq(address: str) -> None:
    from rq import SimpleWorker

    queue, _ = task_programs.make_rq(address)
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")


def run_arq(address: str) -> None:
    from arq import func
    from arq.worker import Worker

    settings, send_receipt = task_programs.make_arq(address)
    Worker([func(send_receipt)], redis_settings=settings, poll_delay=0.05).run()


def run_taskiq(address: str) -> None:
    from taskiq.api import run_receiver_task

    broker, _ = task_programs.make_taskiq(address)
    asyncio.run(run_receiver_task(broker, run_startup=True))


def run_temporal(address: str) -> None:
    from temporalio.client import Client
    from temporalio.worker import Worker

    from tests.support.temporal_program import SendReceipt, write_receipt

    async def work() -> None:
        client = await Client.connect(address)
        with ThreadPoolExecutor(2) as threads:
            options = {"workflows": [SendReceipt], "activities": [write_receipt], "activity_executor": threads}
            await Worker(client, task_queue="shop", **options).run()  # type: ignore[arg-type]

    asyncio.run(work())


if __name__ == "__main__":
    _, library, address = sys.argv
    globals()[f"run_{library}"](address)
