"""Canonical objects: fetches an object's current state from its provider, for events that carry too little of it.

The object is fetched outside of any transaction and with a timeout. If the provider does not respond, the event is
retried later.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from oncehook.concurrency import calling
from oncehook.concurrency.calling import Threads, error_summary
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Fail, Postpone, RetryLater

Fetch = Callable[[Any], Any]

FETCH_TIMEOUT = 10.0
FETCHING_THREADS = 32
"""Threads for plain functions. They are not those of handlers, which may all be waiting for a fetch."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """A user's function for a source: `fetch(event)` returns the object, or None if it no longer exists."""

    fetch: Fetch
    timeout: float

    def __post_init__(self) -> None:
        calling.check_function(self.fetch, calling.name_of(self.fetch), timeout=self.timeout)


class CanonicalFetchers:
    """The fetchers of an inbox, by source."""

    def __init__(self) -> None:
        self._of_source: dict[str, Fetcher] = {}
        self._threads: tuple[asyncio.AbstractEventLoop, Threads] | None = None  # of the inbox's event loop

    def add(self, source: str, fetcher: Fetcher) -> None:
        if source in self._of_source:
            raise ConfigurationError(
                f"source {source!r} has two canonical fetchers: keep one, and branch on event.type in it"
            )
        self._of_source[source] = fetcher

    def __iter__(self) -> Iterator[tuple[str, Fetcher]]:
        return iter(self._of_source.items())

    async def fetch(self, source: str, event: Any) -> Any:
        """Fetch the object of an event.

        Raises RetryLater if the fetcher fails. A `Fail` or `RetryLater` that the fetcher raises is not changed.
        """
        fetcher = self._of_source.get(source)
        if fetcher is None:
            raise Fail(
                f"source {source!r} has no canonical fetcher: register one with inbox.canonical({source!r}, fetch)"
            )
        try:
            return await calling.call("the provider", fetcher.fetch, self._thread_pool(), fetcher.timeout, event)
        except (Fail, RetryLater, Postpone):
            raise
        except TimeoutError:
            raise RetryLater(f"the provider did not respond within {fetcher.timeout:g} s") from None
        except Exception as error:
            raise RetryLater(f"the canonical object could not be fetched: {error_summary(error)}") from error

    def _thread_pool(self) -> Threads:
        loop = asyncio.get_running_loop()
        if self._threads is None or self._threads[0] is not loop:
            self._threads = loop, Threads(FETCHING_THREADS, "oncehook-canonical")
        return self._threads[1]
