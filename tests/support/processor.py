"""A processor without a worker, for tests that hand it leases themselves, and what others hear from it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oncehook import Inbox
from oncehook.model.lease import Leased, Settled
from oncehook.worker.feed import DatabaseFeed
from oncehook.worker.process import Processor
from tests.support.work import claim


@dataclass
class Heard:
    """What a processor reported to its observer and to other processes."""

    settled: list[tuple[int, str, bool]] = field(default_factory=list)
    postponed: list[tuple[list[int], float]] = field(default_factory=list)
    announced: int = 0


class RecordingFeed(DatabaseFeed):
    """The feed of a worker, which also records how attempts end."""

    heard: Heard

    def settled(self, leased: Leased, settled: Settled, landed: bool) -> None:
        self.heard.settled.append((leased.receipt, settled.outcome, landed))

    def postponed(self, receipts: Iterable[int], after: float) -> None:
        self.heard.postponed.append((list(receipts), after))


def listen(inbox: Inbox) -> tuple[Processor, Heard]:
    """Start the processor of an inbox, and record what it reports."""
    processor, heard = inbox._runtime.start_processor(), Heard()
    feed = RecordingFeed(inbox._runtime.store.leases, "test", 30.0, 1.0, (), lambda: inbox._runtime.handlers.handled)
    feed.heard = heard
    processor.observers["main"] = feed

    def announce() -> None:
        heard.announced += 1

    processor.announce = announce
    return processor, heard


async def lease(inbox: Inbox, *ids: str) -> list[Leased]:
    await claim(inbox, *ids)
    return await inbox._runtime.store.leases.take(len(ids), 30, "test")


def wakes_within(processor: Processor) -> float:
    """Seconds until the processor has a worker look for receipts, or 100 if it does not."""
    return processor.wakeups_of("main").seconds_left(100.0)
