"""The tenants of one source in memory: known ones with their verifier, unknown ones, and lookups that failed.

Anyone can send requests to made-up tenants, before any signature is verified. So the cache is bounded, every answer is
cached, concurrent requests for a tenant share one lookup, and the number of lookups per second is limited. Unknown
tenants never displace known ones, and lookups of new tenants never use up the lookups that renew cached ones.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from oncehook.concurrency.calling import user_traceback
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, RateLimited, TenantUnavailable, Unavailable
from oncehook.model.tenant import TENANT_NAME, TenantLimits
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.tenants.budget import Budget
from oncehook.tenants.lookup import FunctionLookup, SecretsFor, WrongSecrets

UNKNOWN_SECONDS = 10.0
"""An unknown tenant is looked up again after this many seconds, or after `ttl` if that is shorter."""

FAILED_SECONDS = 1.0
"""A tenant whose lookup failed is looked up again after this many seconds."""

RETRY_AFTER = 2
"""Seconds after which a sender may deliver again to a tenant that could not be looked up."""

LOG_SECONDS = 1.0
"""Seconds between two log lines about failed lookups of a source."""


class Lookup(Protocol):
    """Finds the secrets of a tenant: a function of the user, or a table."""

    async def find(self, tenant: str) -> Sequence[str] | None:
        """The secrets of a tenant, or None if it is unknown."""

    def reset(self) -> None:
        """Prepare for another event loop."""


@dataclass(slots=True)
class Entry:
    """What the cache knows about one tenant. Without `source` and `failure`, the tenant is unknown."""

    source: Source | None
    fresh_until: float
    usable_until: float  # while lookups fail
    failure: str | None = None
    budget: Budget | None = None  # of the tenant's deliveries

    def result(self) -> Source | None:
        """The source of a known tenant, or None. Raises Unavailable if the lookup failed."""
        if self.failure is not None:
            raise TenantUnavailable(self.failure, retry_after=RETRY_AFTER)
        return self.source


class TenantCache:
    """Finds the tenants of `source`. It is used in one event loop."""

    def __init__(self, source: Source, lookup: Lookup, limits: TenantLimits, clock: Clock = SYSTEM) -> None:
        self.source = source
        self.lookup = lookup
        self.limits = limits
        self.clock = clock
        self._known: OrderedDict[str, Entry] = OrderedDict()  # the least recently used first
        self._others: OrderedDict[str, Entry] = OrderedDict()  # unknown tenants, and failed lookups of new ones
        self._flights: dict[str, asyncio.Task[Entry]] = {}
        self._running: set[asyncio.Task[Entry]] = set()  # including lookups of tenants that were discarded
        self._first_lookups = Budget(limits.lookups)
        self._renewals = Budget(limits.lookups)
        self._log_after = -math.inf
        self._unlogged = 0
        self._log_throttled_after = -math.inf
        self._throttled = 0

    def get(self, tenant: str) -> Source | None:
        """The source of a known tenant that needs no lookup now, or None. Never waits."""
        entry = self._known.get(tenant)
        if entry is None or self.clock.monotonic() >= entry.fresh_until:
            return None
        self._known.move_to_end(tenant)
        return entry.source

    async def find(self, tenant: str) -> Source | None:
        """The source of a tenant, or None if the tenant is unknown. Raises Unavailable if that cannot be known now."""
        source = self.get(tenant)
        if source is not None or not TENANT_NAME.fullmatch(tenant):
            return source
        now = self.clock.monotonic()
        entry = self._known.get(tenant) or self._others.get(tenant)
        if entry is not None and now < entry.fresh_until:
            return entry.result()
        flight = self._flights.get(tenant) or self._start_lookup(tenant, entry, now)
        if flight is None:
            return self._without_lookup(entry, now)
        try:
            entry = await asyncio.shield(flight)
        except asyncio.CancelledError:
            if not flight.cancelled():
                raise
            raise Unavailable("this process is stopping", retry_after=RETRY_AFTER) from None
        return entry.result()

    def for_source(self, source: Source) -> "TenantCache":
        """An empty cache with the same lookup, for a copy of the source."""
        return TenantCache(source, self.lookup, self.limits, self.clock)

    def discard(self, tenant: str) -> None:
        """Forget a tenant whose secrets changed. The next delivery looks it up."""
        for entries in (self._known, self._others):
            entries.pop(tenant, None)
        self._flights.pop(tenant, None)  # it may have read the old secrets, so its answer is not stored

    def clear(self) -> None:
        """Forget all tenants. The next delivery of each looks it up."""
        self._known.clear()
        self._others.clear()
        self._flights.clear()  # they may have read old secrets, so their answers are not stored

    async def stop(self) -> None:
        """Cancel running lookups. The next one may run in another event loop."""
        flights = list(self._running)
        for flight in flights:
            flight.cancel()
        if flights:
            await asyncio.wait(flights)
        self.lookup.reset()

    def __len__(self) -> int:
        return len(self._known) + len(self._others)

    # -- lookups --------------------------------------------------------------------------------------------------

    def _start_lookup(self, tenant: str, entry: Entry | None, now: float) -> "asyncio.Task[Entry] | None":
        """Start a lookup, or return None if there were too many in this second."""
        is_known = entry is not None and entry.source is not None
        if not (self._renewals if is_known else self._first_lookups).take(now):
            return None
        flight = asyncio.create_task(self._look_up(tenant, entry))
        self._flights[tenant] = flight
        self._running.add(flight)
        flight.add_done_callback(lambda ended: self._end_lookup(tenant, ended))
        return flight

    def _end_lookup(self, tenant: str, ended: "asyncio.Task[Entry]") -> None:
        self._running.discard(ended)
        if self._flights.get(tenant) is ended:
            del self._flights[tenant]

    def _without_lookup(self, entry: Entry | None, now: float) -> Source | None:
        """Answer while no more lookups are allowed: a known tenant keeps its secrets."""
        if entry is not None and entry.source is not None and now < entry.usable_until:
            return entry.source
        self._log_throttled()
        raise TenantUnavailable("too many new tenants were looked up in this second", retry_after=RETRY_AFTER)

    def _log_throttled(self) -> None:
        """Log that no more lookups are allowed, at most once per second: anyone can cause it."""
        self._throttled += 1
        now = self.clock.monotonic()
        if now >= self._log_throttled_after:
            self._log_throttled_after = now + LOG_SECONDS
            count, self._throttled = self._throttled, 0
            signals.emit("tenant_lookups_exceeded", source=self.source.name, count=count)

    async def _look_up(self, tenant: str, old: Entry | None) -> Entry:
        """Look a tenant up and cache the answer. Raises nothing but CancelledError."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                secrets = await self.lookup.find(tenant)
            source = self._make_source(tenant, secrets)
        except Exception as error:
            return self._failed(tenant, old, error)
        now = self.clock.monotonic()
        if source is None:
            return self._store(tenant, Entry(None, now + min(UNKNOWN_SECONDS, self.limits.ttl), now))
        fresh_until = now + self.limits.ttl
        budget = self._limit_rate(source, old)
        return self._store(tenant, Entry(source, fresh_until, fresh_until + self.limits.stale, budget=budget))

    def _make_source(self, tenant: str, secrets: Sequence[str] | None) -> Source | None:
        if secrets is None or not (secrets or self.source.provider.starts_without_secret):
            return None
        return self.source.for_tenant(tenant, secrets)

    def _limit_rate(self, source: Source, old: Entry | None) -> Budget | None:
        """Limit the rate of a tenant's verified deliveries. Deliveries that are not verified use nothing of it."""
        if self.limits.rate is None:
            return None
        budget = (old and old.budget) or Budget(self.limits.rate)
        read = source.read

        def limited_read(delivery: Delivery, parsed: Any) -> list[Claim]:
            if not budget.take(self.clock.monotonic()):
                raise RateLimited(
                    "a tenant delivers faster than tenants.rate allows", retry_after=math.ceil(budget.wait)
                )
            return read(delivery, parsed)

        source.read = limited_read
        return budget

    def _failed(self, tenant: str, old: Entry | None, error: Exception) -> Entry:
        """Keep the secrets of a known tenant for a limited time. Any other tenant is not available."""
        self._log(tenant, error)
        now = self.clock.monotonic()
        again = now + FAILED_SECONDS
        if old is not None and old.source is not None and now < old.usable_until:
            kept = replace(old, fresh_until=min(again, old.usable_until))
            return self._store(tenant, kept)
        failure = f"the secrets of a tenant could not be looked up: {type(error).__name__}"
        return self._store(tenant, Entry(None, again, now, failure))

    def _store(self, tenant: str, entry: Entry) -> Entry:
        """Store the result of this lookup, unless the tenant was discarded during it."""
        if self._flights.get(tenant) is not asyncio.current_task():
            return entry
        entries, others = (self._known, self._others) if entry.source else (self._others, self._known)
        others.pop(tenant, None)
        entries[tenant] = entry
        entries.move_to_end(tenant)
        while len(entries) > self.limits.cache:
            entries.popitem(last=False)
        return entry

    def _log(self, tenant: str, error: Exception) -> None:
        """Log a failed lookup, at most one per second. The text of an unknown error may contain a secret."""
        self._unlogged += 1
        now = self.clock.monotonic()
        if now < self._log_after:
            return
        self._log_after = now + LOG_SECONDS
        count, self._unlogged = self._unlogged, 0
        is_ours = isinstance(error, ConfigurationError | WrongSecrets)
        signals.emit(
            "tenant_lookup_failed",
            source=self.source.name,
            tenant=tenant,
            error=type(error).__name__,
            detail=str(error) if is_ours else "",
            failures=count,
            traceback="" if is_ours else user_traceback(error),
        )


def make_cache(source: Source, secrets_for: SecretsFor, clock: Clock = SYSTEM) -> TenantCache:
    """The cache of a source whose tenants a function of the user looks up. Raises ConfigurationError."""
    limits = source.settings.tenants
    if limits is None:
        raise ConfigurationError(f"sources.{source.name} has secrets_for and tenants = false: remove one of them")
    return TenantCache(source, FunctionLookup(source.name, secrets_for, limits.timeout), limits, clock)
