"""Which process handles what, and what becomes of events that none of them handles.

Every process with a worker registers its handlers, forwards and projections in the database, and counts as live for a
minute after it was last seen. A worker leases only what its own process handles. Receipts of types that no live process
handles are set apart: they stay `received`, no attempt is counted, and no lease passes over them. They are taken up
when a process with a handler appears. A source with `unhandled = "ignore"` has them `ignored` instead, after a grace.

Types are matched here, by the patterns that the handlers use; the database is asked only which types wait.
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
from oncehook.store.rows import Position, Type
from oncehook.store.store import Store

LOOK_SECONDS = 1.0
SHARE = 20
"""A look that changed nothing is followed by this many times its duration without one."""

SEEN_SECONDS = 10.0
"""How often a process says that it is live; it counts as live for six times as long."""

TAKE_UP_SECONDS = 5.0
"""How often events that were set apart are compared with the handlers, beside every change of the handlers."""

IGNORE_SECONDS = 300.0
"""How long an event of a source with `unhandled = "ignore"` waits for a handler: a rolling deploy takes minutes."""

WINDOW, MOST_TYPES = 2000, 10_000
LONGEST = 0.25
"""Seconds after which a part of a look ends; the rest is left for the next one."""


class Roster:
    """The part of one process in the roster, and what it knows of the others; a second old at most."""

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
        self.is_known = False  # whether the handlers of other processes were read
        self._elsewhere: tuple[tuple[str, str, bool], ...] = ()  # (source, pattern, whether it is a projection)
        self._handled = self._registered = Handled()
        self._next_seen = self._next_take_up = float("-inf")
        self._after: dict[bool, Position | None] = {False: None, True: None}  # with a serial key, or without
        self._size = WINDOW
        self._warned: set[Type] = set()
        self._changed = 0  # how many events the look under way has set apart, taken up or ignored
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Its handlers stay live for their minute: whoever restarts in time leaves no event without one."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- what is known --------------------------------------------------------------------------------------------

    def handled(self) -> Handled:
        """What this process handles, for its leases."""
        own = self.handlers.handled
        if self._handled.patterns != own.patterns or self._handled.projected != own.projected:
            self._handled = replace(own, is_shared=self._is_shared(own))
        return self._handled

    def _is_shared(self, own: Handled) -> bool:
        """Whether another process handles what this one does not."""
        patterns, whole = set(own.patterns), {source for source, pattern in own.patterns if pattern == "*"}
        return any(
            source not in whole
            and (source not in own.projected if is_projection else (source, pattern) not in patterns)
            for source, pattern, is_projection in self._elsewhere
        )

    def is_handled_elsewhere(self, source: str, type_: str, *, projections: bool = True) -> bool:
        """Whether a live process other than this one handles a type."""
        return any(
            source == other and (projections or not is_projection) and compile_pattern(pattern).fullmatch(type_)
            for other, pattern, is_projection in self._elsewhere
        )

    def is_handled(self, source: str, type_: str) -> bool:
        """Whether any live process handles a type."""
        return self.handlers.find(source, type_) is not None or self.is_handled_elsewhere(source, type_)

    # -- looking --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began, self._changed = self.clock.monotonic(), 0
            try:
                await self.look()
            except Unavailable as error:
                signals.emit("worker_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("roster", error)
            took = self.clock.monotonic() - began
            await asyncio.sleep(max(LOOK_SECONDS, took if self._changed else SHARE * took))

    async def look(self) -> None:
        """Stay registered, read who handles what, and sort the events that wait."""
        is_registered = await self._register()
        is_news = self._know(await self.store.roster.live_handlers())
        for serial in (False, True):
            await self._set_apart(serial)
        if is_registered or is_news or self.clock.monotonic() >= self._next_take_up:
            await self._take_up()

    async def _register(self) -> bool:
        """Register what this process handles, if the roster does not have it; whether it was registered now."""
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
        return await self.store.roster.seen(self.name)

    def _know(self, live: Iterable[LiveHandler]) -> bool:
        """Take in what other processes handle; whether that is news."""
        others = {(row.source, row.pattern, row.is_projection) for row in live if row.worker != self.name}
        elsewhere = tuple(sorted(others))
        changed = elsewhere != self._elsewhere or not self.is_known
        if changed:
            self._elsewhere, self.is_known = elsewhere, True
            self._handled = replace(self.handlers.handled, is_shared=self._is_shared(self.handlers.handled))
        return changed

    async def _set_apart(self, serial: bool) -> None:
        """Set apart what no process handles, window by window, from where the last look ended."""
        deadline = self.clock.monotonic() + LONGEST
        while self.clock.monotonic() < deadline:
            after = self._after[serial]
            types, last, is_full = await self.store.roster.waiting_types(after, self._size, serial=serial)
            unhandled = [type_ for type_ in types if not self.is_handled(*type_)]
            if unhandled and last is not None:
                found = await self.store.roster.set_apart(unhandled, after, last, self._size, serial=serial)
                self._changed += found.total()
                self._warn(found)
            self._after[serial] = self._next(after, last, serial) if is_full else None
            if not is_full:
                return

    def _next(self, after: Position | None, last: Position | None, serial: bool) -> Position | None:
        """Where to go on behind a full window."""
        if last is None or last != after:
            self._size = WINDOW
            return last
        if serial:  # all of one key: its next ones come when these are done
            return (last[0], last[1] + "\x01")
        self._size *= 2  # all are due at one moment
        return last

    def _warn(self, found: Mapping[Type, int]) -> None:
        """Log each type once."""
        if len(self._warned) > MOST_TYPES:
            self._warned.clear()
        for (source, type_), count in found.items():
            if (source, type_) not in self._warned:
                self._warned.add((source, type_))
                signals.emit("unhandled", source=source, type=type_, count=count)

    async def _take_up(self) -> None:
        deadline = self.clock.monotonic() + LONGEST
        self._next_take_up = self.clock.monotonic() + TAKE_UP_SECONDS
        for type_ in await self.store.roster.unhandled_types(MOST_TYPES):
            if self.is_handled(*type_):
                await self._until(deadline, self._take_up_some, type_)
            elif self._ignores(type_[0]):
                await self._until(deadline, self._ignore_some, type_)

    async def _until(self, deadline: float, change: Callable[[Type], Awaitable[int]], type_: Type) -> None:
        """Change window after window until none is full. What is left at the deadline is for the next look."""
        while self.clock.monotonic() < deadline:
            number = await change(type_)
            self._changed += number
            if number < WINDOW:
                return
        self._next_take_up = float("-inf")

    async def _take_up_some(self, type_: Type) -> int:
        taken = await self.store.roster.take_up(type_, WINDOW)
        if taken:
            self._warned.discard(type_)
            signals.emit("handler_available", source=type_[0], type=type_[1], count=taken)
            self.announce()
        return taken

    async def _ignore_some(self, type_: Type) -> int:
        ignored = await self.store.roster.ignore_unhandled(type_, ignored_because(*type_), IGNORE_SECONDS, WINDOW)
        if ignored:
            signals.emit("unhandled_ignored", source=type_[0], type=type_[1], count=ignored)
        return ignored

    def _ignores(self, source: str) -> bool:
        return source in self.sources and self.sources[source].settings.unhandled == "ignore"


def ignored_because(source: str, type_: str) -> str:
    """What a receipt says that was ignored for want of a handler."""
    return f'no process has a handler for {type_}, and sources.{source}.unhandled is "ignore"'
