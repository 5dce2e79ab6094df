"""The state of the queues of an inbox, for the command line, the doctor and the dashboard."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from oncehook.intake.broker import Broker, QueueStatus
from oncehook.intake.open_broker import open_broker
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from oncehook.providers.source import Source

STATUS_SECONDS = 3.0
"""For how many seconds a queue may take to count its messages."""


class IntakeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of one source. Without `counts`, `problem` says why it could not be read."""

    source: str
    queue: str
    format: str
    trust: str | None
    counts: QueueStatus | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The queue as JSON data. A count that the broker does not tell is null."""
        empty = dict.fromkeys(QueueStatus.__struct_fields__)
        counts = empty if self.counts is None else msgspec.structs.asdict(self.counts)
        facts = {name: getattr(self, name) for name in ("source", "queue", "format", "trust")}
        return facts | counts | {"problem": self.problem}


async def read_statuses(sources: Mapping[str, Source]) -> list[IntakeStatus]:
    """Connect to the queue of each source that has one, and count its messages. The queues are read concurrently."""
    found = [source for _, source in sorted(sources.items()) if source.settings.intake is not None]
    return list(await asyncio.gather(*map(_connect_and_read, found)))


async def _connect_and_read(source: Source) -> IntakeStatus:
    assert source.settings.intake is not None
    try:
        broker = open_broker(source.settings.intake, source.name)
    except ConfigurationError as error:
        return make_status(source, source.settings.intake.partition(":")[0], problem=str(error))
    try:
        await broker.start()
        return await read_status(source, broker)
    except (BrokerUnavailable, ConfigurationError) as error:
        return make_status(source, broker.name, problem=str(error))
    finally:
        await broker.stop()


async def read_status(source: Source, broker: Broker) -> IntakeStatus:
    """Count the messages of a queue. If it does not respond in time, the status has a `problem` that says so."""
    try:
        counts = await asyncio.wait_for(broker.status(), STATUS_SECONDS)
    except (BrokerUnavailable, ConfigurationError) as error:
        return make_status(source, broker.name, problem=str(error))
    except TimeoutError:
        return make_status(source, broker.name, problem=f"there was no response within {STATUS_SECONDS:g} s")
    return make_status(source, broker.name, counts=counts)


def make_status(
    source: Source, queue: str, *, counts: QueueStatus | None = None, problem: str | None = None
) -> IntakeStatus:
    """The status of a source's queue, with the settings of its intake."""
    settings = source.settings
    return IntakeStatus(
        source=source.name,
        queue=queue,
        format=settings.intake_format,
        trust=settings.intake_trust,
        counts=counts,
        problem=problem,
    )
