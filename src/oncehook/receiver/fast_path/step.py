"""The step before the claim: answers deliveries whose events are all remembered, and remembers what is committed.

An answer is given in three steps: find the entries, query the state of the database after the delivery arrived, and
compare. Without an entry, or if the query fails or shows another database, the delivery is claimed as usual. So this
step can only ever make an answer faster.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from oncehook.concurrency.batches import Batches
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.observability import metrics, signals
from oncehook.receiver.claim import ClaimStep, Waiter, new_waiter
from oncehook.receiver.fast_path.entries import Entry, RememberedReceipts, entry_of, key_of
from oncehook.store.fast_path import FastPathState

CHECK_SECONDS = 1.0
"""How long a query of the state may take. After that, the deliveries that wait for it are claimed."""

PAUSE_SECONDS = 1.0
"""After a failed query, deliveries are claimed at once for this long."""

MAX_WAITING = 10_000
"""How many deliveries may wait for the query. Further ones are claimed."""

Observe = Callable[[Sequence[tuple[Claim, Claimed]]], None]


class StateStore(Protocol):
    """Queries the state of the database. `Store.fast_path` implements it."""

    async def state(self) -> FastPathState: ...

    async def renew(self) -> None: ...


class SharedEntries(Protocol):
    """Entries that several processes share. Whatever it returns was put by a process of the same database."""

    async def find(self, claims: Sequence[Claim], state: FastPathState) -> list[Entry] | None:
        """Return the entry of each claim, or None. Never raises, and takes a few milliseconds at most."""

    def put(self, claim: Claim, entry: Entry, state: FastPathState) -> None:
        """Share an entry in the background. Never waits, never raises."""


class FastPath:
    """Implements `ClaimStep` around another one."""

    def __init__(
        self,
        inner: ClaimStep,
        store: StateStore,
        remembered: RememberedReceipts,
        *,
        observe: Observe,
        shared: SharedEntries | None = None,
        ids_ascend: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        self.inner = inner
        self._store = store
        self._remembered = remembered
        self._observe = observe
        self._shared = shared
        self._ids_ascend = ids_ascend  # each new receipt has a greater number than all before it
        self._clock = clock
        self._checks: Batches[_Hit] = Batches(self._check)
        self._paused_until = 0.0
        self._was_set_back = False

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        state = self._remembered.state
        entries = self._remembered.find(claims)
        if entries is None and self._shared is not None and claims and not self._is_paused:
            entries = await self._shared.find(claims, state)
        if entries is not None and not self._is_paused and len(self._checks) < MAX_WAITING:
            hit = _Hit(claims, entries, state.namespace, new_waiter(asyncio.get_running_loop()))
            self._checks.add(hit)
            results = await hit.waiter
            if results:
                return results
        state = self._remembered.state  # of a moment before the claim: a commit never counts for a later server
        greatest = self._remembered.greatest
        results = await self.inner.claim(claims)
        if self._ids_ascend and any(result.fresh and 0 < result.receipt <= greatest for result in results):
            self._was_set_back = True  # a backup was restored under this process, and the number was drawn again
            self._remembered.forget()
        elif state.namespace == self._remembered.state.namespace:
            self._remember(claims, results, state)
        return results

    async def drain(self) -> None:
        """Wait until every delivery that waits for a query is answered or claimed."""
        await self._checks.drain()

    @property
    def _is_paused(self) -> bool:
        return self._paused_until > 0.0 and self._clock.monotonic() < self._paused_until

    def _remember(self, claims: Sequence[Claim], results: Sequence[Claimed], state: FastPathState) -> None:
        for claim, result in zip(claims, results, strict=True):
            entry = entry_of(claim, result)
            if entry is not None:
                self._remembered.put(key_of(claim), entry)
                if self._shared is not None:
                    self._shared.put(claim, entry, state)

    async def _check(self, hits: "list[_Hit]") -> None:
        """Query the state once for all hits, and answer those that are valid. The others get no result."""
        state = await self._query()
        answered: list[tuple[Claim, Claimed]] = []
        for hit in hits:
            results = [] if state is None else hit.results(state)
            if results:
                answered += zip(hit.claims, results, strict=True)
                self._remember_shared(hit)
            if not hit.waiter.done():
                hit.waiter.set_result(results)
        if answered:
            with suppress(Exception):  # a failing log must not fail the next batch
                self._observe(answered)
                for claim, _ in answered:
                    metrics.count("oncehook_fast_path_hits_total", claim.source)

    def _remember_shared(self, hit: "_Hit") -> None:
        if self._shared is not None:
            for claim, entry in zip(hit.claims, hit.entries, strict=True):
                self._remembered.put(key_of(claim), entry)

    async def _query(self) -> FastPathState | None:
        """Return the state, or None if the database does not tell. A new namespace ends everything remembered."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                state = await self._store.state()
                if self._was_set_back or state.receipts < self._remembered.greatest:
                    await self._store.renew()  # other processes and the shared cache have to forget, too
                    state, self._was_set_back = await self._store.state(), False
        except Exception as error:
            self._paused_until = self._clock.monotonic() + PAUSE_SECONDS
            signals.emit("fast_path_unavailable", detail=type(error).__name__)
            return None
        if self._remembered.use(state):
            signals.emit("fast_path_renewed")
        return state


class _Hit:
    """A delivery whose events are all remembered. It waits for the query."""

    __slots__ = ("claims", "entries", "namespace", "waiter")

    def __init__(
        self,
        claims: Sequence[Claim],
        entries: Sequence[Entry],
        namespace: bytes,
        waiter: Waiter[list[Claimed]],
    ) -> None:
        self.claims = claims
        self.entries = entries
        self.namespace = namespace
        self.waiter = waiter

    def results(self, state: FastPathState) -> list[Claimed]:
        """Return the results of its claims, or nothing if a receipt may not be in the database any more."""
        if self.namespace != state.namespace or any(entry.receipt <= state.deleted_up_to for entry in self.entries):
            return []
        return [
            Claimed(entry.receipt, False, entry.status, entry.fingerprint, entry.fingerprint == claim.fingerprint)
            for claim, entry in zip(self.claims, self.entries, strict=True)
        ]
