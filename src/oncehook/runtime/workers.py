"""The workers of a process: one for `main`, and one for each other consumer that has handlers in the process."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oncehook.config.consumer_settings import CONSUMER_SLOTS
from oncehook.model.event import MAIN
from oncehook.observability.code_version import checked_out_commit
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.process import Processor
from oncehook.worker.worker import Worker

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def make_workers(runtime: "Runtime") -> tuple[Worker, list[Worker]]:
    """Make the worker of `main`, and those of the other consumers. They have one name, that of the process."""
    first = make_worker(runtime, MAIN)
    others = [make_worker(runtime, name, first.name) for name in runtime.handlers.consumers[1:]]
    if runtime.work_queue is not None:
        runtime.work_queue.start_receiving()
    return first, others


def make_worker(runtime: "Runtime", consumer: str, name: str | None = None) -> Worker:
    """Make the worker of a consumer."""
    own = runtime.consumers.settings.get(consumer)
    slots, queue = slots_of(runtime, consumer), runtime.work_queue
    worker = Worker(
        runtime.store,
        runtime.start_processor(),
        consumer=consumer,
        name=name,
        concurrency=slots,
        rate=None if own is None else own.rate,
        lease_seconds=runtime.settings.lease,
        poll=runtime.settings.poll,
        skip_failed=runtime.skip_failed,
        announce=runtime.announcer.announce,
        handled=partial(runtime.roster.handled, consumer),
        feed=None if queue is None else partial(queue.make_feed, consumer, slots),
    )
    if queue is not None:
        queue.feeds[consumer].ready = worker.continue_leasing
    return worker


def slots_of(runtime: "Runtime", consumer: str) -> int:
    """Return how many events of a consumer this process handles at the same time."""
    own = runtime.consumers.settings.get(consumer)
    if own is not None and own.concurrency is not None:
        return own.concurrency
    return runtime.settings.concurrency if consumer == MAIN else min(runtime.settings.concurrency, CONSUMER_SLOTS)


def all_slots(runtime: "Runtime") -> int:
    """Return how many handlers this process runs at the same time: the slots of all consumers."""
    return sum(slots_of(runtime, consumer) for consumer in runtime.handlers.consumers)


def make_processor(runtime: "Runtime", heartbeat: Heartbeat) -> Processor:
    """Make the processor that runs the handlers of all consumers."""
    return Processor(
        runtime.store,
        runtime.handlers,
        heartbeat,
        transaction=runtime.outbox,
        version=runtime.settings.version or checked_out_commit(Path.cwd()),
        clock=runtime.clock,
        announce=runtime.announcer.announce,
        slots=partial(slots_of, runtime),
    )
