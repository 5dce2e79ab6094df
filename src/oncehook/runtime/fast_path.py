"""The fast path of duplicates, as a part of a running inbox."""

from typing import TYPE_CHECKING

from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.receiver.claim import ClaimStep
from oncehook.receiver.fast_path.entries import RememberedReceipts
from oncehook.receiver.fast_path.shared import SharedReceipts
from oncehook.receiver.fast_path.step import FastPath

if TYPE_CHECKING:
    from oncehook.brokers.redis_cache import RedisCache
    from oncehook.runtime import Runtime


class FastPathPart:
    """Wraps the claims of the receiver while the inbox runs. Queued and inline events share what is remembered."""

    def __init__(self, runtime: "Runtime") -> None:
        self._store = runtime.store.fast_path
        self._ids_ascend = runtime.store.dialect.single_writer
        self._reception = runtime.reception
        self._limit = runtime.settings.duplicate_cache
        self._cache = None if runtime.settings.redis is None else _make_cache(runtime.settings.redis)
        self._shared = None if self._cache is None else SharedReceipts(self._cache)
        self._clock = runtime.clock
        self._steps: list[FastPath] = []

    async def start(self) -> None:
        receiver = self._reception.receiver
        try:
            state = await self._store.state()
        except Unavailable as error:
            signals.emit("fast_path_unavailable", detail=error.detail)
            return
        if self._cache is not None:
            await self._cache.start()
        remembered = RememberedReceipts(self._limit, state, self._clock)
        receiver.claims = self._wrap(receiver.claims, remembered)
        receiver.inline_claims = self._wrap(receiver.inline_claims, remembered)

    async def stop(self) -> None:
        receiver = self._reception.receiver
        if self._steps:
            receiver.claims, receiver.inline_claims = (step.inner for step in self._steps)
        for step in self._steps:
            await step.drain()
        self._steps.clear()
        if self._shared is not None and self._cache is not None:
            await self._shared.drain()
            await self._cache.stop()

    def _wrap(self, inner: ClaimStep, remembered: RememberedReceipts) -> FastPath:
        step = FastPath(
            inner,
            self._store,
            remembered,
            observe=self._reception.observe,
            shared=self._shared,
            ids_ascend=self._ids_ascend,
            clock=self._clock,
        )
        self._steps.append(step)
        return step


def _make_cache(url: str) -> "RedisCache":
    from oncehook.brokers.redis_cache import RedisCache

    return RedisCache(url)
