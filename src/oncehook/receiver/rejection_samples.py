"""Stores samples of rejected requests for the doctor, off the hot path.

Anyone can send requests that are rejected, so at most one sample per second is written. Sources alternate, and each
has a small ring of samples. A sample is truncated and contains no credentials.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from oncehook.model.delivery import Delivery, Rejection
from oncehook.model.errors import Rejected
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.providers.definition import Provider
from oncehook.providers.forwarded_address import ADDRESS
from oncehook.providers.source import Source
from oncehook.store.operator_protocols import RejectionStore

MAX_BODY_BYTES = 65_536
MAX_HEADERS = 100
MAX_HEADER_CHARS = 16_384
"""The size limit for all headers of a sample together, names included."""

MAX_VALUE_CHARS, MAX_NAME_CHARS = 4096, 200
"""The size limits for one header: its value and its name."""

PAUSE = 1.0
"""Seconds between the writes of two samples."""

_REMOVED = "(not kept)"
_encode = msgspec.json.Encoder().encode


def make_sample(source: Source, delivery: Delivery, error: Rejected) -> Rejection:
    """A truncated copy of a rejected request, without credentials. Of an encrypted source, only its size and reason."""
    is_encrypted = source.settings.encrypt
    return Rejection(
        source=source.name,
        tenant=source.tenant,
        reason=error.reason,
        detail=error.detail,
        method=delivery.method,
        query="" if is_encrypted else _query(source, delivery),
        headers="{}" if is_encrypted else _encode(dict(_headers(source, delivery))).decode(),
        body=b"" if is_encrypted else delivery.body[:MAX_BODY_BYTES],
        size=len(delivery.body),
    )


def _headers(source: Source, delivery: Delivery) -> Iterable[tuple[str, str]]:
    """The headers without credentials, signature headers first. The value of a token is replaced by "(not kept)"."""
    signed, tokens = _verification_headers(source.provider)
    room = MAX_HEADER_CHARS
    if delivery.address:
        yield ADDRESS, delivery.address[:MAX_VALUE_CHARS]
        room -= MAX_VALUE_CHARS
    first = sorted(delivery.headers.items(), key=lambda pair: not _matches(pair[0], signed | tokens))
    for name, value in first[:MAX_HEADERS]:
        is_token = _matches(name, tokens)
        if not is_token and not _matches(name, signed) and not source.reader.stored_names[name]:
            continue
        text = _REMOVED if is_token else value[:MAX_VALUE_CHARS].decode("latin-1")
        room -= len(name) + len(text)
        if room < 0:
            return
        yield name[:MAX_NAME_CHARS].decode("latin-1"), text


def _verification_headers(provider: Provider) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The names of the headers that verify a delivery: of signatures, and of tokens, which are secrets."""
    signed, tokens = set[bytes](), {b"authorization"}
    for signature in provider.signatures:
        family = signature.family
        (tokens if family.sends_secret(signature) else signed).update(family.signed_headers(signature))
    return frozenset(signed), frozenset(tokens)


def _matches(name: bytes, patterns: frozenset[bytes]) -> bool:
    return name in patterns or any(p.endswith(b"*") and name.startswith(p[:-1]) for p in patterns)


def _query(source: Source, delivery: Delivery) -> str:
    """The query string if the address is signed. Otherwise only its parameter names: a value may be a token."""
    text = delivery.query[:MAX_VALUE_CHARS].decode("latin-1").replace("\x00", "")
    if any(signature.covers_address for signature in source.provider.signatures):
        return text
    return "&".join(f"{name}=…" for part in text.split("&") if (name := part.partition("=")[0]))


class RejectionSampleWriter:
    """Writes samples of rejected requests in the background, at most one per second."""

    def __init__(self, store: RejectionStore, pause: float = PAUSE) -> None:
        self.store = store
        self.pause = pause
        self._waiting: dict[str, Rejection] = {}  # by source, the oldest first
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def note(self, source: Source, delivery: Delivery, error: Rejected) -> None:
        """Queue a sample, unless one of the same source is queued. Never waits, never raises."""
        if source.name in self._waiting:
            return
        self._waiting[source.name] = make_sample(source, delivery, error)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def stop(self) -> None:
        """Write all queued samples without pauses."""
        self._hurry.set()
        if self._writing is not None:
            await self._writing
        self._hurry.clear()

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._write_sample(next(iter(self._waiting)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self.pause)
        finally:
            self._writing = None

    async def _write_sample(self, source: str) -> None:
        try:
            await self.store.keep(self._waiting[source])
        except Exception as error:  # losing a sample must not disturb anything else
            signals.emit("rejection_sample_lost", source=source, detail=type(error).__name__)
        del self._waiting[source]
        reach(Checkpoint.REJECTIONS_RECORDED)
