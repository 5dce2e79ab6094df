"""The object as it is now, asked of its provider: for events that come before their local row, or tell too little.

It is fetched outside of any transaction, with a time limit. When the provider does not answer, the event is tried
again later.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from oncehook.concurrency import calling
from oncehook.concurrency.calling import Threads, said
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Fail, Postpone, RetryLater

Fetch = Callable[[Any], Any]

FETCH_TIMEOUT = 10.0
FETCHING_THREADS = 32
"""For plain functions; apart from those that handlers run in, which may all be waiting for one."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """A user's function that asks a source's provider: `fetch(event)` gives the object, or None if it is gone."""

    fetch: Fetch
    timeout: float

    def __post_init__(self) -> None:
        calling.check(self.fetch, calling.name_of(self.fetch), timeout=self.timeout)


class Canonical:
    """The fetchers of an inbox, by source."""

    def __init__(self) -> None:
        self._of_source: dict[str, Fetcher] = {}
        self._threads: tuple[asyncio.AbstractEventLoop, Threads] | None = None  # of the loop that the inbox runs in

    def add(self, source: str, fetcher: Fetcher) -> None:
        if source in self._of_source:
            raise ConfigurationError(
                f"source {source!r} has two canonical fetchers: keep one, and let it look at event.type"
            )
        self._of_source[source] = fetcher

    def __iter__(self) -> Iterator[tuple[str, Fetcher]]:
        return iter(self._of_source.items())

    async def fetch(self, source: str, event: Any) -> Any:
        """The object now. Raises RetryLater when it cannot be told, and lets `Fail` and `RetryLater` through."""
        fetcher = self._of_source.get(source)
        if fetcher is None:
            raise Fail(
                f"source {source!r} has no canonical fetcher: register one with inbox.canonical({source!r}, fetch)"
            )
        try:
            return await calling.call("the provider", fetcher.fetch, self._room(), fetcher.timeout, event)
        except (Fail, RetryLater, Postpone):
            raise
        except TimeoutError:
            raise RetryLater(f"the provider did not answer within {fetcher.timeout:g} s") from None
        except Exception as error:
            raise RetryLater(f"the canonical object could not be fetched: {said(error)}") from error

    def _room(self) -> Threads:
        loop = asyncio.get_running_loop()
        if self._threads is None or self._threads[0] is not loop:
            self._threads = loop, Threads(FETCHING_THREADS, "oncehook-canonical")
        return self._threads[1]
