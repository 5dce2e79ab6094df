"""The roster: which live process handles which types, and what happens to events that no process handles.

Every process with a worker registers its handlers, forwards and projections in the database. It counts as live for a
minute after it was last seen. A worker leases only events that its own process handles. Receipts of a type that no live
process handles are set aside: they stay `received`, use no attempt, and do not slow down leases. They are resumed when
a process with a handler appears. For a source with `unhandled = "ignore"` they become `ignored` after a grace period.

The roster matches types in Python, with the patterns of the handlers. It queries the database only for waiting types.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.handlers.registry import Handlers
from oncehook.model.errors import Unavailable
from oncehook.model.event import MAIN
from oncehook.model.patterns import Handled, compile_pattern
from oncehook.model.rows import LiveHandler
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.store.rows import EventType, WindowPosition
from oncehook.store.store import Store

REFRESH_SECONDS = 1.0
SHARE = 20
"""After a refresh that changed nothing, the roster waits this many times as long as the refresh took."""

SEEN_SECONDS = 10.0
"""How often a process reports that it is live. It counts as live for six times as long."""

RESUME_SECONDS = 5.0
"""How often the events that were set aside are compared with the handlers. A change of handlers does so at once."""

IGNORE_SECONDS = 300.0
"""How long an event of a source with `unhandled = "ignore"` waits for a handler: a rolling deploy takes minutes."""

WINDOW, MAX_TYPES = 2000, 10_000
LONGEST = 0.25
"""Seconds after which one part of a refresh stops. The next refresh continues."""


Elsewhere = tuple[str, str, bool]
"""(source, pattern, whether it is a projection) of a handler in another process."""


class Roster:
    """The roster as one process sees it: its own entry, and the handlers of the others, at most a second old."""

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        sources: Mapping[str, Source],
        *,
        announce: Callable[[], None],
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.handlers = handlers
        self.sources = sources
        self.announce = announce
        self.clock = clock
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.register_consumers: Callable[[], Awaitable[bool]] | None = None  # called with every registration
        # Whether only other consumers than `main` handle a type of a source:
        self.is_left_to_others: Callable[[str, str], bool] = lambda source, type_: False
        self.is_known = False  # whether the handlers of other processes have been read
        self._elsewhere: dict[str, tuple[Elsewhere, ...]] = {}  # by consumer
        self._handled: dict[str, Handled] = {}  # by consumer
        self._registered = {MAIN: Handled()}
        self._next_seen = self._next_resume = float("-inf")
        self._after: dict[tuple[str, bool], WindowPosition | None] = {}  # by consumer and `serial`
        self._size = WINDOW
        self._warned: set[tuple[str, EventType]] = set()
        self._changed = 0  # how many events this refresh has set aside, resumed or ignored
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop refreshing. The entry stays live for its minute, so that a quick restart leaves no event unhandled."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- handled types --------------------------------------------------------------------------------------------

    def handled(self, consumer: str = MAIN) -> Handled:
        """Return the sources and patterns that this process handles for a consumer, for its leases."""
        own, known = self.handlers.handled_by(consumer), self._handled.get(consumer)
        if known is None or known.patterns != own.patterns or known.projected != own.projected:
            known = self._handled[consumer] = replace(own, is_shared=self._is_shared(own, consumer))
        return known

    def _is_shared(self, own: Handled, consumer: str) -> bool:
        """Return whether another process handles events of the consumer that this one does not."""
        patterns, whole = set(own.patterns), {source for source, pattern in own.patterns if pattern == "*"}
        return any(
            source not in whole
            and (source not in own.projected if is_projection else (source, pattern) not in patterns)
            for source, pattern, is_projection in self._elsewhere.get(consumer, ())
        )

    def is_handled_elsewhere(self, source: str, type_: str, consumer: str = MAIN, *, projections: bool = True) -> bool:
        """Return whether another live process handles a type for a consumer."""
        return any(
            source == other and (projections or not is_projection) and compile_pattern(pattern).fullmatch(type_)
            for other, pattern, is_projection in self._elsewhere.get(consumer, ())
        )

    def is_handled(self, source: str, type_: str, consumer: str = MAIN) -> bool:
        """Return whether any live process handles a type for a consumer."""
        own = self.handlers.find(source, type_, consumer)
        return own is not None or self.is_handled_elsewhere(source, type_, consumer)

    # -- refreshing -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began, self._changed = self.clock.monotonic(), 0
            try:
                await self.refresh()
            except Unavailable as error:
                signals.emit("worker_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("roster", error)
            took = self.clock.monotonic() - began
            await asyncio.sleep(max(REFRESH_SECONDS, took if self._changed else SHARE * took))

    async def refresh(self) -> None:
        """Keep this process registered, read the other handlers, and set aside or resume waiting events."""
        is_registered = await self._register()
        has_changed = self._update(await self.store.roster.live_handlers())
        consumers = sorted({*self.handlers.consumers, *self._elsewhere})
        for consumer in consumers:
            for serial in (False, True):
                await self._set_aside(consumer, serial)
        if is_registered or has_changed or self.clock.monotonic() >= self._next_resume:
            self._next_resume = self.clock.monotonic() + RESUME_SECONDS
            for consumer in consumers:
                await self._resume(consumer)

    async def _register(self) -> bool:
        """Register the handlers of this process if they are missing. Returns whether it had to."""
        own = {consumer: self.handlers.handled_by(consumer) for consumer in self.handlers.consumers}
        if own == self._registered and await self._is_seen():
            return False
        await self.store.roster.register(self.name, own)
        if self.register_consumers is not None:
            await self.register_consumers()
        self._registered, self._next_seen = own, self.clock.monotonic() + SEEN_SECONDS
        return True

    async def _is_seen(self) -> bool:
        if not any(self._registered.values()) or self.clock.monotonic() < self._next_seen:
            return True
        self._next_seen = self.clock.monotonic() + SEEN_SECONDS
        if self.register_consumers is not None and await self.register_consumers():
            return False  # a person removed a consumer of this process, and with it the entries of its handlers
        return await self.store.roster.renew(self.name)

    def _update(self, live: Iterable[LiveHandler]) -> bool:
        """Store the handlers of the other processes. Returns whether they changed."""
        others: dict[str, set[Elsewhere]] = {}
        for row in live:
            if row.worker != self.name:
                others.setdefault(row.consumer, set()).add((row.source, row.pattern, row.is_projection))
        elsewhere = {consumer: tuple(sorted(patterns)) for consumer, patterns in others.items()}
        changed = elsewhere != self._elsewhere or not self.is_known
        if changed:
            self._elsewhere, self.is_known = elsewhere, True
            self._handled.clear()
        return changed

    async def _set_aside(self, consumer: str, serial: bool) -> None:
        """Set aside events that no process handles, window by window, from where the last refresh stopped."""
        deadline = self.clock.monotonic() + LONGEST
        while self.clock.monotonic() < deadline:
            after = self._after.get((consumer, serial))
            types, last, is_full = await self.store.roster.waiting_types(consumer, after, self._size, serial=serial)
            unhandled = [type_ for type_ in types if not self.is_handled(*type_, consumer)]
            if unhandled and last is not None:
                counts = await self.store.roster.hold_unhandled(
                    consumer, unhandled, (after, last), self._size, serial=serial
                )
                self._changed += counts.total()
                self._warn(consumer, counts)
            self._after[consumer, serial] = self._next(after, last, serial) if is_full else None
            if not is_full:
                return

    def _next(self, after: WindowPosition | None, last: WindowPosition | None, serial: bool) -> WindowPosition | None:
        """Return the position after a full window."""
        if last is None or last != after:
            self._size = WINDOW
            return last
        if serial:  # all have one serial key, whose later events wait for these
            return (last[0], last[1] + "\x01")
        self._size *= 2  # all are due at the same moment
        return last

    def _warn(self, consumer: str, counts: Mapping[EventType, int]) -> None:
        """Log each type once."""
        if len(self._warned) > MAX_TYPES:
            self._warned.clear()
        for (source, type_), count in counts.items():
            if consumer == MAIN and self.is_left_to_others(source, type_):
                continue
            if (consumer, (source, type_)) not in self._warned:
                self._warned.add((consumer, (source, type_)))
                signals.emit("unhandled", source=source, type=type_, consumer=consumer, count=count)

    async def _resume(self, consumer: str) -> None:
        """Resume the events that have a handler now, and ignore those whose source says so."""
        deadline = self.clock.monotonic() + LONGEST
        for type_ in await self.store.roster.unhandled_types(consumer, MAX_TYPES):
            if self.is_handled(*type_, consumer):
                await self._until(deadline, partial(self._resume_some, consumer), type_)
            elif consumer == MAIN and self.ignores(*type_):
                await self._until(deadline, partial(self._ignore_some, consumer), type_)

    async def _until(self, deadline: float, change: Callable[[EventType], Awaitable[int]], type_: EventType) -> None:
        """Call `change` for one window after another. After the deadline, the next refresh continues."""
        while self.clock.monotonic() < deadline:
            number = await change(type_)
            self._changed += number
            if number < WINDOW:
                return
        self._next_resume = float("-inf")

    async def _resume_some(self, consumer: str, type_: EventType) -> int:
        resumed = await self.store.roster.release_unhandled(consumer, type_, WINDOW)
        if resumed:
            self._warned.discard((consumer, type_))
            signals.emit("handler_available", source=type_[0], type=type_[1], consumer=consumer, count=resumed)
            self.announce()
        return resumed

    async def _ignore_some(self, consumer: str, type_: EventType) -> int:
        reason = self.ignored_because(*type_)
        ignored = await self.store.roster.ignore_unhandled(consumer, type_, reason, seconds=IGNORE_SECONDS, size=WINDOW)
        if ignored:
            signals.emit("unhandled_ignored", source=type_[0], type=type_[1], count=ignored)
        return ignored

    def ignores(self, source: str, type_: str) -> bool:
        """Return whether an event of `main` becomes `ignored` if no process handles it."""
        return self.is_left_to_others(source, type_) or (
            source in self.sources and self.sources[source].settings.unhandled == "ignore"
        )

    def ignored_because(self, source: str, type_: str) -> str:
        """Return the error text of a receipt that is ignored because no process has a handler."""
        if self.is_left_to_others(source, type_):
            return f"only other consumers handle {type_} of {source}: no process has a handler of main for it"
        return f'no process has a handler for {type_}, and sources.{source}.unhandled is "ignore"'
