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

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.handlers.registry import Handlers
from oncehook.model.errors import Unavailable
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
        self.is_known = False  # whether the handlers of other processes have been read
        self._elsewhere: tuple[tuple[str, str, bool], ...] = ()  # (source, pattern, whether it is a projection)
        self._handled = self._registered = Handled()
        self._next_seen = self._next_resume = float("-inf")
        self._after: dict[bool, WindowPosition | None] = {False: None, True: None}  # by `serial`
        self._size = WINDOW
        self._warned: set[EventType] = set()
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

    def handled(self) -> Handled:
        """Return the sources and patterns that this process handles, for its leases."""
        own = self.handlers.handled
        if self._handled.patterns != own.patterns or self._handled.projected != own.projected:
            self._handled = replace(own, is_shared=self._is_shared(own))
        return self._handled

    def _is_shared(self, own: Handled) -> bool:
        """Return whether another process handles events that this one does not."""
        patterns, whole = set(own.patterns), {source for source, pattern in own.patterns if pattern == "*"}
        return any(
            source not in whole
            and (source not in own.projected if is_projection else (source, pattern) not in patterns)
            for source, pattern, is_projection in self._elsewhere
        )

    def is_handled_elsewhere(self, source: str, type_: str, *, projections: bool = True) -> bool:
        """Return whether another live process handles a type."""
        return any(
            source == other and (projections or not is_projection) and compile_pattern(pattern).fullmatch(type_)
            for other, pattern, is_projection in self._elsewhere
        )

    def is_handled(self, source: str, type_: str) -> bool:
        """Return whether any live process handles a type."""
        return self.handlers.find(source, type_) is not None or self.is_handled_elsewhere(source, type_)

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
        for serial in (False, True):
            await self._set_aside(serial)
        if is_registered or has_changed or self.clock.monotonic() >= self._next_resume:
            await self._resume()

    async def _register(self) -> bool:
        """Register the handlers of this process if they are missing. Returns whether it had to."""
        own = self.handlers.handled
        if own == self._registered and await self._is_seen():
            return False
        await self.store.roster.register(self.name, own)
        self._registered, self._next_seen = own, self.clock.monotonic() + SEEN_SECONDS
        return True

    async def _is_seen(self) -> bool:
        if not self._registered or self.clock.monotonic() < self._next_seen:
            return True
        self._next_seen = self.clock.monotonic() + SEEN_SECONDS
        return await self.store.roster.renew(self.name)

    def _update(self, live: Iterable[LiveHandler]) -> bool:
        """Store the handlers of the other processes. Returns whether they changed."""
        others = {(row.source, row.pattern, row.is_projection) for row in live if row.worker != self.name}
        elsewhere = tuple(sorted(others))
        changed = elsewhere != self._elsewhere or not self.is_known
        if changed:
            self._elsewhere, self.is_known = elsewhere, True
            self._handled = replace(self.handlers.handled, is_shared=self._is_shared(self.handlers.handled))
        return changed

    async def _set_aside(self, serial: bool) -> None:
        """Set aside events that no process handles, window by window, from where the last refresh stopped."""
        deadline = self.clock.monotonic() + LONGEST
        while self.clock.monotonic() < deadline:
            after = self._after[serial]
            types, last, is_full = await self.store.roster.waiting_types(after, self._size, serial=serial)
            unhandled = [type_ for type_ in types if not self.is_handled(*type_)]
            if unhandled and last is not None:
                counts = await self.store.roster.hold_unhandled(unhandled, after, last, self._size, serial=serial)
                self._changed += counts.total()
                self._warn(counts)
            self._after[serial] = self._next(after, last, serial) if is_full else None
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

    def _warn(self, counts: Mapping[EventType, int]) -> None:
        """Log each type once."""
        if len(self._warned) > MAX_TYPES:
            self._warned.clear()
        for (source, type_), count in counts.items():
            if (source, type_) not in self._warned:
                self._warned.add((source, type_))
                signals.emit("unhandled", source=source, type=type_, count=count)

    async def _resume(self) -> None:
        """Resume the events that have a handler now, and ignore those whose source says so."""
        deadline = self.clock.monotonic() + LONGEST
        self._next_resume = self.clock.monotonic() + RESUME_SECONDS
        for type_ in await self.store.roster.unhandled_types(MAX_TYPES):
            if self.is_handled(*type_):
                await self._until(deadline, self._resume_some, type_)
            elif self._ignores(type_[0]):
                await self._until(deadline, self._ignore_some, type_)

    async def _until(self, deadline: float, change: Callable[[EventType], Awaitable[int]], type_: EventType) -> None:
        """Call `change` for one window after another. After the deadline, the next refresh continues."""
        while self.clock.monotonic() < deadline:
            number = await change(type_)
            self._changed += number
            if number < WINDOW:
                return
        self._next_resume = float("-inf")

    async def _resume_some(self, type_: EventType) -> int:
        resumed = await self.store.roster.release_unhandled(type_, WINDOW)
        if resumed:
            self._warned.discard(type_)
            signals.emit("handler_available", source=type_[0], type=type_[1], count=resumed)
            self.announce()
        return resumed

    async def _ignore_some(self, type_: EventType) -> int:
        ignored = await self.store.roster.ignore_unhandled(type_, ignored_because(*type_), IGNORE_SECONDS, WINDOW)
        if ignored:
            signals.emit("unhandled_ignored", source=type_[0], type=type_[1], count=ignored)
        return ignored

    def _ignores(self, source: str) -> bool:
        return source in self.sources and self.sources[source].settings.unhandled == "ignore"


def ignored_because(source: str, type_: str) -> str:
    """Return the error text of a receipt that is ignored because no process has a handler."""
    return f'no process has a handler for {type_}, and sources.{source}.unhandled is "ignore"'
