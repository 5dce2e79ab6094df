"""A cache in Redis that never delays a delivery by more than a few milliseconds, and never raises.

Lookups have a time budget. After a connection error, or FAILURES lookups without an answer in time, the cache is
unavailable: lookups return nothing at once, and a background task probes Redis until it answers again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals

BUDGET = 0.01
"""Seconds that a lookup may take."""

WRITE_SECONDS = 1.0
PROBE_SECONDS = 1.0
FAILURES = 3
FIRST_PAUSE = 0.5
MAX_PAUSE = 15.0


class RedisCache:
    """Values in Redis, by key. `url` may contain a password, so it is never logged."""

    def __init__(self, url: str) -> None:
        self._client = _make_client(url)
        self._failures = 0
        self._probing: asyncio.Task[None] | None = None
        self.is_available = False
        self._problem = ""  # the class of the error of the last probe

    async def start(self) -> None:
        """Connect. If Redis does not answer, go on without it and probe it in the background."""
        problem = await self.check()
        if problem is not None:
            self._became_unavailable(problem)

    async def check(self) -> str | None:
        """Return None if Redis answers, or else the class of the error, such as AuthenticationError."""
        return None if await self._probe() else self._problem

    async def stop(self) -> None:
        self.is_available = False
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        await self._client.aclose()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key. Never raises: without an answer in time, every value is None."""
        nothing: list[bytes | None] = [None] * len(keys)
        if not self.is_available:
            return nothing
        try:
            async with asyncio.timeout(BUDGET):
                values = await self._client.mget(keys)
        except TimeoutError as error:
            self._failures += 1
            if self._failures >= FAILURES:
                self._became_unavailable(type(error).__name__)
            return nothing
        except Exception as error:  # whatever Redis or its client does, the events are claimed
            self._became_unavailable(type(error).__name__)
            return nothing
        self._failures = 0
        return values if isinstance(values, list) and len(values) == len(keys) else nothing

    async def put(self, values: Mapping[bytes, bytes], seconds: int) -> None:
        """Store values for some seconds. Never raises."""
        if not self.is_available:
            return
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._client.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(key, value, ex=seconds)
                await pipeline.execute(raise_on_error=False)  # a full Redis rejects writes: they are not needed
        except Exception as error:
            self._became_unavailable(type(error).__name__)

    def _became_unavailable(self, detail: str) -> None:
        self.is_available = False
        if self._probing is None:
            signals.emit("redis_unavailable", detail=detail)
            self._probing = asyncio.get_running_loop().create_task(self._keep_probing())

    async def _keep_probing(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            if await self._probe():
                break
            pause = min(2 * pause, MAX_PAUSE)
        self._probing = None
        signals.emit("redis_available")

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._client.ping()
        except Exception as error:
            self._problem = type(error).__name__
            return False
        self._failures, self.is_available = 0, True
        return True


def _make_client(url: str) -> Any:
    """Make a client without connecting. Raises ConfigurationError if the client is missing or the URL is wrong."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigurationError("redis needs its client: pip install 'oncehook[redis]'") from None
    try:
        return Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=PROBE_SECONDS, decode_responses=False
        )
    except ValueError:
        raise ConfigurationError(
            "redis is not a Redis URL: expected redis://user:password@host:port/0, rediss://… or unix://…"
        ) from None
