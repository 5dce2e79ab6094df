"""What is kept of refused requests, how many there were, and which secrets still verify: off the hot path.

A stranger can knock as often as they like: one sample a second is written at most, the sources taking turns, each with
a small ring of its own. A sample is cut, and credentials are left out of it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from oncehook.model.delivery import Delivery, Rejection
from oncehook.model.errors import Rejected
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.definition import Provider
from oncehook.providers.forwarded_address import ADDRESS
from oncehook.providers.source import Source
from oncehook.store.operator_protocols import AlertStore, RejectionStore

MOST_BYTES = 65_536
MOST_OF_A_HEADER = 4096
MOST_HEADERS, MOST_OF_HEADERS, MOST_OF_A_NAME = 100, 16_384, 200
"""What a sample keeps of the headers: so many, so many characters altogether, and so many of a name."""

PAUSE = 1.0
"""Seconds from one write of a sample to the next."""

FLUSH = 10.0
"""Seconds over which the uses of secrets are counted into one write."""

_NOT_KEPT = "(not kept)"
_encode = msgspec.json.Encoder().encode


def sample(source: Source, delivery: Delivery, error: Rejected) -> Rejection:
    """What may be kept of a refused request."""
    return Rejection(
        source=source.name,
        reason=error.reason,
        detail=error.detail,
        method=delivery.method,
        query=_query(source, delivery),
        headers=_encode(dict(_headers(source, delivery))).decode(),
        body=delivery.body[:MOST_BYTES],
        size=len(delivery.body),
    )


def _headers(source: Source, delivery: Delivery) -> Iterable[tuple[str, str]]:
    """The headers without credentials, those that verify the delivery first; of a token only that it was there."""
    signed, tokens = _verifying(source.provider)
    room = MOST_OF_HEADERS
    if delivery.address:
        yield ADDRESS, delivery.address[:MOST_OF_A_HEADER]
        room -= MOST_OF_A_HEADER
    first = sorted(delivery.headers.items(), key=lambda pair: not _is_named(pair[0], signed | tokens))
    for name, value in first[:MOST_HEADERS]:
        is_token = _is_named(name, tokens)
        if not is_token and not _is_named(name, signed) and not source.reader.kept_names[name]:
            continue
        text = _NOT_KEPT if is_token else value[:MOST_OF_A_HEADER].decode("latin-1")
        room -= len(name) + len(text)
        if room < 0:
            return
        yield name[:MOST_OF_A_NAME].decode("latin-1"), text


def _verifying(provider: Provider) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The headers with what is compared to the secrets: signatures, and tokens, which are secrets themselves."""
    signed, tokens = set[bytes](), {b"authorization"}
    for signature in provider.signatures:
        family = signature.family
        (tokens if family.sends_secret(signature) else signed).update(family.signed_headers(signature))
    return frozenset(signed), frozenset(tokens)


def _is_named(name: bytes, names: frozenset[bytes]) -> bool:
    return name in names or any(one.endswith(b"*") and name.startswith(one[:-1]) for one in names)


def _query(source: Source, delivery: Delivery) -> str:
    """The query whole where the address is signed; elsewhere a token may be in it, so only its names."""
    text = delivery.query[:MOST_OF_A_HEADER].decode("latin-1").replace("\x00", "")
    if any(signature.covers_address for signature in source.provider.signatures):
        return text
    return "&".join(f"{name}=…" for part in text.split("&") if (name := part.partition("=")[0]))


class RejectionLog:
    """Writes samples of refused requests: one a second at most, never in anybody's way."""

    def __init__(self, store: RejectionStore, pause: float = PAUSE) -> None:
        self.store = store
        self.pause = pause
        self._waiting: dict[str, Rejection] = {}  # one a source, whoever waits longest first
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def note(self, source: Source, delivery: Delivery, error: Rejected) -> None:
        """Keep this one, unless one of the same source is waiting already. Never waits, never raises."""
        if source.name in self._waiting:
            return
        self._waiting[source.name] = sample(source, delivery, error)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def stop(self) -> None:
        """Write what waits, one a source, without the pauses."""
        self._hurry.set()
        if self._writing is not None:
            await self._writing
        self._hurry.clear()

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._keep(next(iter(self._waiting)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self.pause)
        finally:
            self._writing = None

    async def _keep(self, source: str) -> None:
        try:
            await self.store.keep(self._waiting[source])
        except Exception as error:  # a sample is worth nobody's trouble
            signals.emit("rejection_sample_lost", source=source, detail=type(error).__name__)
        del self._waiting[source]
        reach(Checkpoint.REJECTIONS_RECORDED)


class NowAndThen:
    """Writes what was counted meanwhile, now and then, and at a stop."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_writing())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.write()

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH)
            await self.write()

    async def write(self) -> None:
        raise NotImplementedError


class SecretLog(NowAndThen):
    """Counts which secret verified, and writes the counts now and then."""

    def __init__(self, store: RejectionStore, sources: dict[str, Source]) -> None:
        self.store = store
        self.sources = sources

    async def write(self) -> None:
        """Add what was counted since the last time. If that fails, it is counted again next time."""
        taken = [(source, index, count) for source in self.sources.values() for index, count in enumerate(source.uses)]
        used = {(source.name, source.marks[index]): count for source, index, count in taken if count}
        if not used:
            return
        try:
            await self.store.note_secrets(used)
        except Exception as error:
            signals.emit("secret_uses_write_failed", detail=type(error).__name__)
        else:
            for source, index, count in taken:
                source.uses[index] -= count


class RefusalLog(NowAndThen):
    """Writes how many deliveries were refused, so that what all processes refused is known in one place."""

    def __init__(self, store: AlertStore, stats: ReceiverStats) -> None:
        self.store = store
        self.stats = stats

    async def write(self) -> None:
        """Add what was refused since the last time. If that fails, it is added to the next."""
        taken, self.stats.unwritten_rejections = self.stats.unwritten_rejections, Counter()
        if not taken:
            return
        try:
            await self.store.note_rejections(taken)
        except Exception as error:
            self.stats.unwritten_rejections.update(taken)
            signals.emit("rejection_counts_write_failed", detail=type(error).__name__)


class AckLog(NowAndThen):
    """Writes how long acks took, so that the overview of any process has the latencies of all."""

    def __init__(self, store: AlertStore, stats: ReceiverStats) -> None:
        self.store = store
        self.stats = stats

    async def write(self) -> None:
        """Add what was acked since the last time. If that fails, it is added to the next."""
        taken, self.stats.unwritten_acks = self.stats.unwritten_acks, Counter()
        if not taken:
            return
        try:
            await self.store.note_acks(taken)
        except Exception as error:
            self.stats.unwritten_acks.update(taken)
            signals.emit("ack_latency_write_failed", detail=type(error).__name__)
