"""The identity of a database: which database it is, and which history of commits it has.

A failover or a restored backup can lose rows that a process has seen. The process is then connected to a database with
another history. Everything that remembers rows compares identities: what it learned under one identity is not known
under another.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import StoreUnavailable
from oncehook.store.executor import Executor

CONFIRMED_SECONDS = 3.0
"""For how many seconds a confirmed identity is trusted. A running inbox confirms it every second."""

EPOCH_BITS = 52
READ_ONLY = "PostgreSQL is read-only: the server is a standby"


@dataclass(frozen=True, slots=True)
class Identity:
    """Names a database and its history. Two equal names mean that no commit was lost between them."""

    name: str
    """On PostgreSQL the cluster, its timeline, the start of the server, the database, the table and the epoch. On
    SQLite the epoch."""

    receipts: int
    """The last receipt id that was drawn. It never decreases while the history is the same."""

    @property
    def digest(self) -> str:
        """The name as 32 hexadecimal digits, for keys outside the database."""
        return hashlib.blake2b(self.name.encode(), digest_size=16).hexdigest()


Listener = Callable[[Identity], None]
"""Forgets what was learned from the database. Gets the new identity."""


class IdentityMonitor:
    """Knows the identity of the database that this process uses, and tells listeners when it has changed.

    A running inbox calls `check` every second. On PostgreSQL, the identity is also compared on every new connection of
    the pool, before its first statement.
    """

    def __init__(self, executor: Executor, clock: Clock = SYSTEM, *, renews: bool = False) -> None:
        self._executor = executor
        self._renews = renews
        self._clock = clock
        self._known: Identity | None = None
        self._trusted_until = 0.0
        self._losses = 0
        self._listeners: list[Listener] = []

    @property
    def current(self) -> Identity | None:
        """The identity, or None while it is not certain.

        It is not certain before the first check, after a connection was lost, and CONFIRMED_SECONDS after the last
        check. Use what you remember only while this is the identity under which you learned it.
        """
        return self._known if self._clock.monotonic() < self._trusted_until else None

    def on_identity_change(self, listener: Listener) -> None:
        """Call `listener` after each change, before `current` returns the new identity.

        It is not called for the first identity, nor while the identity is uncertain. It runs in the event loop of the
        inbox and must neither block nor raise. A change may be reported although no row was lost, for instance after
        a restart of PostgreSQL: forgetting must be harmless.
        """
        self._listeners.append(listener)

    async def start(self) -> Identity:
        """Learn the identity when an inbox starts.

        With `renews`, the epoch is replaced first: nothing in a SQLite file shows that it is a copy from a backup.
        """
        return await self.observe(self.renew if self._renews else self.read)

    async def check(self) -> Identity:
        """Query the identity, compare it with the known one, and return it. Raises StoreUnavailable.

        If the database has fewer receipts than this process has seen, an older state was restored under the same name.
        The epoch is then replaced, so that all processes notice it.
        """
        return await self.observe(lambda: self._read_or_renew(self._known))

    async def observe(self, read: Callable[[], Awaitable[Identity]]) -> Identity:
        """Compare the identity that `read` returns with the known one. If `read` raises, it is uncertain."""
        started, losses, known = self._clock.monotonic(), self._losses, self._known
        try:
            identity = await read()
        except BaseException:
            self.forget()
            raise
        self._learn(identity)
        if losses == self._losses and not _went_back(known, identity):
            self._trusted_until = started + CONFIRMED_SECONDS
        return identity

    def forget(self) -> None:
        """Make the identity uncertain until the next check, because a connection was lost."""
        self._losses += 1
        self._trusted_until = 0.0

    async def renew(self) -> Identity:
        """Replace the epoch, and return the identity that results."""
        await self._executor.write("renew_identity", {"epoch": secrets.randbits(EPOCH_BITS)})
        return await self.read()

    async def read(self) -> Identity:
        """Query the identity, without a comparison. Raises StoreUnavailable, also if the server is a standby."""
        return to_identity((await self._executor.read("identity"))[0])

    async def _read_or_renew(self, known: Identity | None) -> Identity:
        identity = await self.read()
        return await self.renew() if _went_back(known, identity) else identity

    def _learn(self, identity: Identity) -> None:
        known, self._known = self._known, identity
        if known is None:
            return
        if known.name == identity.name:
            self._known = replace(identity, receipts=max(known.receipts, identity.receipts))
            return
        self._trusted_until = 0.0
        for listener in self._listeners:
            listener(identity)


def _went_back(known: Identity | None, identity: Identity) -> bool:
    """Whether ids that were drawn before are to be drawn again. `known` was read before `identity`."""
    return known is not None and known.name == identity.name and known.receipts > identity.receipts


def to_identity(row: Any) -> Identity:
    """Convert the row of the query `identity`. Raises StoreUnavailable if the server is a standby."""
    if row["is_standby"]:
        raise StoreUnavailable(READ_ONLY)
    return Identity(row["name"], row["receipts"])
