"""Email events of every provider as one stream of facts, and what follows from them: status, suppressions, counts.

`Email` is `inbox.email`: queries and changes for people and programs. `projection` derives the tables from events.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from oncehook.config.settings import Settings
from oncehook.email import status, suppress
from oncehook.email.event import message
from oncehook.email.events import normalise, sendgrid_message
from oncehook.email.rows import EventCount, Found, StoredFact, StoredStatus
from oncehook.email.suppress import Allowed, Blocked, Change, Policy, Suppression
from oncehook.model.timestamps import rfc3339
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction

PAGE = 500
__all__ = ["Allowed", "Blocked", "Email", "normalise"]


@dataclass(slots=True)
class Checked:
    """What a rebuild or a verify found."""

    messages: int = 0
    addresses: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"messages": self.messages, "addresses": self.addresses, "differences": len(self.differences)}


class Email:
    """What follows from the email events of an inbox: `inbox.email`."""

    def __init__(self, opened_store: Callable[[], AbstractAsyncContextManager[Store]], settings: Settings) -> None:
        """Each operation enters `opened_store()` once, and uses the store that it yields."""
        self._opened_store = opened_store
        self.policy = Policy.of(
            settings.email_suppress, settings.email_soft_bounces, case_sensitive=settings.email_case_sensitive
        )
        self.retention = settings.email_retention

    @classmethod
    def of(cls, store: Store, settings: Settings) -> Self:
        """The operations on a store that is open and that the caller closes."""
        return cls(lambda: nullcontext(store), settings)

    async def can_send(self, to: str) -> Allowed | Blocked:
        """Whether an address may be sent to; `Blocked` is false, and says which event speaks against it."""
        async with self._opened_store() as store:
            return await suppress.can_send(store, to, self.policy)

    async def status(self, message_id: str) -> list[dict[str, Any]]:
        """The status of a message for each recipient, by the id that the provider gave it."""
        async with self._opened_store() as store:
            rows = await store.email.query("email_status_of", ids_of(message_id), StoredStatus)
        return [_status_json(row) for row in rows]

    async def events(self, message_id: str) -> list[dict[str, Any]]:
        """The facts about a message, oldest first by the provider's clock."""
        async with self._opened_store() as store:
            rows = await store.email.query("email_events_of", ids_of(message_id), StoredFact)
        return [_fact_json(row) for row in rows]

    async def suppression(self, to: str) -> dict[str, Any] | None:
        """The suppression of an address, or None if it may be sent to."""
        found = self.policy.address(to)
        if not found:
            return None
        async with self._opened_store() as store:
            rows = await store.email.query("email_suppressions_of", [found, suppress.hashed(found)], Suppression)
        return next((suppress.as_json(row) for row in rows if row.since is not None), None)

    async def suppressions(self, *, after: str = "", limit: int = PAGE, search: str = "") -> list[dict[str, Any]]:
        """Those that must not be sent to, by address above `after`; only those with `search` in the address."""
        wanted = {"after": after, "limit": limit, "search": search}
        async with self._opened_store() as store:
            rows = await store.email.query("email_suppressions", wanted, Suppression)
        return [suppress.as_json(row) for row in rows]

    async def suppress(self, to: str, *, actor: str, note: str | None = None) -> dict[str, Any]:
        """Add an address by hand. Raises ValueError for what is no address."""
        return (await self.change([Change(to, note)], actor=actor))[0]

    async def allow(self, to: str, *, actor: str, note: str | None = None) -> dict[str, Any]:
        """Lift a suppression by hand: what happened before now no longer counts, what happens later does."""
        return (await self.change([Change(to, note, remove=True)], actor=actor))[0]

    async def change(self, changes: Sequence[Change], *, actor: str) -> list[dict[str, Any]]:
        """Several additions and removals, in one transaction with the note of who made them.

        Of several additions of one address the earliest counts.
        """
        wanted: dict[str, Change] = {}
        for change in sorted(changes, key=lambda change: change.since or "~", reverse=True):
            wanted[self.named(change.address)] = change

        async def work(transaction: Transaction) -> list[suppress.Suppression]:
            also = await suppress.forgotten(transaction, wanted)
            rows = await suppress.apply(transaction, {**also, **wanted}, actor, self.policy)
            for action, removes in (("suppress", False), ("allow", True)):
                hashes = [suppress.hashed(to) for to, change in sorted(wanted.items()) if change.remove is removes]
                if hashes:
                    note = {"actor": actor, "action": action, "detail": json.dumps({"addresses": hashes})}
                    await status.ask(transaction, "email_audit", note)
            return [row for row in rows if row.address in wanted]

        async with self._opened_store() as store:
            rows = await store.email.transact(work)
        return [suppress.as_json(row) for row in rows]

    async def forget(self, to: str, *, actor: str) -> int:
        """Erase the facts about an address and its statuses; its suppression stays, by a hash. How many rows."""
        found = self.policy.address(to)
        if found is None:
            return 0

        async def work(transaction: Transaction) -> int:
            erased = await suppress.forget(transaction, found)
            if erased:
                note = {"actor": actor, "action": "forget", "detail": json.dumps({"address": suppress.hashed(found)})}
                await status.ask(transaction, "email_audit", note)
            return erased

        async with self._opened_store() as store:
            return await store.email.transact(work)

    async def knows(self, to: str) -> bool:
        """Whether there is anything that `forget` would erase."""
        found = self.policy.address(to)
        if found is None:
            return False
        async with self._opened_store() as store:
            return bool(await store.email.query("email_mentions", {"address": found}, Found))

    def named(self, to: str) -> str:
        """An address as it is compared; raises ValueError for what is none."""
        found = self.policy.address(to)
        if found is None:
            raise ValueError(f"{to!r} is not an email address")
        return found

    # -- counters -------------------------------------------------------------------------------------------------

    async def counts(
        self,
        by: Sequence[str] = ("day", "type"),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        source: str | None = None,
    ) -> list[dict[str, Any]]:
        """How many events, by any of day, source, type, tag and domain: counted from the facts, whenever it is asked.

        By tag, an event with two tags counts for both. Raises ValueError for another dimension, and for a bound that is
        not a datetime.
        """
        _check_counts(by, since=since, until=until)
        asked = {f"by_{name}": name in by for name in DIMENSIONS}
        bounds = {"since": rfc3339(since), "until": rfc3339(until), "source": source}
        async with self._opened_store() as store:
            rows = await store.email.query("email_counts", {**asked, **bounds}, EventCount)
        shown = [name for name in DIMENSIONS if name in by]
        columns = [*shown, *(["bounce"] if "type" in shown else []), "events"]
        return [{name: getattr(row, name) for name in columns} for row in rows]

    # -- rebuilding -----------------------------------------------------------------------------------------------

    async def rebuild(self, progress: Callable[[Checked], None] | None = None) -> Checked:
        """Refold every status and suppression from the facts, page by page, and mend what differs."""
        return await self._check(True, progress)

    async def verify(self, progress: Callable[[Checked], None] | None = None) -> Checked:
        """Refold and compare, and change nothing. No difference is the promise."""
        return await self._check(False, progress)

    async def _check(self, mend: bool, progress: Callable[[Checked], None] | None) -> Checked:
        done = Checked()
        async with self._opened_store() as store:
            after: Any = ("", "", "")
            while after is not None:
                after, looked, found = await store.email.transact(_Page(status.check_page, after, mend=mend))
                done.messages += looked
                done.differences += found
                _tell(progress, done)
            after = ""
            while after is not None:
                page = _Page(suppress.check_page, after, self.policy, mend=mend)
                after, looked, found = await store.email.transact(page)
                done.addresses += looked
                done.differences += found
                _tell(progress, done)
        return done

    # -- pruning --------------------------------------------------------------------------------------------------

    async def prune(self) -> tuple[int, bool]:
        """Delete some facts of messages of which nothing was heard for `email_retention`; how many, and are there more?

        All that is known of a message and a recipient goes at once, so what is left still folds to what is kept.
        """
        if self.retention is None:
            return 0, False
        async with self._opened_store() as store:
            return await store.email.transact(_Pruning(await _before(store, self.retention)))

    async def prunable(self) -> int:
        """How many facts `prune` would delete by and by."""
        if self.retention is None:
            return 0
        async with self._opened_store() as store:
            before = await _before(store, self.retention)

            async def work(transaction: Transaction) -> int:
                [(facts,)] = await status.ask(transaction, "email_prunable", {"before": before})
                return int(facts)

            return await store.email.transact(work)


async def _before(store: Store, retention: float) -> str | None:
    """The time of the database minus `retention` seconds."""
    return rfc3339(await store.operations.now() - timedelta(seconds=retention))


class _Pruning:
    """Deletes one page of old facts, as work for a transaction. Returns how many, and whether there are more."""

    def __init__(self, before: str | None) -> None:
        self.before = before

    async def __call__(self, transaction: Transaction) -> tuple[int, bool]:
        given = {"before": self.before, "most": PAGE}
        keys = await status.ask(transaction, "email_old_status", given)
        named = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
        gone = len(await status.ask(transaction, "email_drop_unassigned", given))
        is_more = gone == PAGE or len(keys) == PAGE
        if named:
            gone += len(await status.ask(transaction, "email_drop_events", named))
            await status.ask(transaction, "email_drop_status", named)
        return gone, is_more


DIMENSIONS = ("day", "source", "type", "tag", "domain")


def _check_counts(by: Sequence[str], **bounds: datetime | None) -> None:
    if isinstance(by, str):
        raise ValueError(f"by={by!r} is a text: pass a list of dimensions, such as [{by!r}]")
    for name in by:
        if name not in DIMENSIONS:
            raise ValueError(f"by has {name!r}, which is not a dimension: known are {', '.join(DIMENSIONS)}")
    for name, bound in bounds.items():
        if bound is not None and not isinstance(bound, datetime):
            raise ValueError(
                f"{name}={bound!r} is not a datetime: pass one, such as datetime.now(UTC) - timedelta(days=30)"
            )


class _Page:
    """One page of a check, as work for a transaction."""

    def __init__(self, check: Callable[..., Any], after: Any, *more: Any, mend: bool) -> None:
        self.check, self.after, self.more, self.mend = check, after, more, mend

    async def __call__(self, transaction: Transaction) -> Any:
        return await self.check(transaction, self.after, PAGE, *self.more, mend=self.mend)


def _tell(progress: Callable[[Checked], None] | None, done: Checked) -> None:
    if progress is not None:
        progress(done)


def _status_json(row: StoredStatus) -> dict[str, Any]:
    facts = row.as_json()
    return {"event": facts.pop("event_key") or None, **facts, "recipient": row.recipient or None}


def _fact_json(row: StoredFact) -> dict[str, Any]:
    parsed = {"tags": json.loads(row.tags), "metadata": json.loads(row.metadata)}
    return {**row.as_json(), **parsed, "recipient": row.recipient or None}


def ids_of(given: str) -> list[str]:
    """What a message may be kept under: the id that a person gives may have brackets, or be SendGrid's long one."""
    return sorted({found for found in (message(given), sendgrid_message(given)) if found})
