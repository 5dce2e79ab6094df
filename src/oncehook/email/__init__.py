"""Email events of all providers in one vocabulary, and the projection: message status, suppressions and counts.

`Email` is `inbox.email`: queries, and changes by people. `projection.py` derives the email tables from events.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from oncehook.config.settings import Settings
from oncehook.email import status, suppressions
from oncehook.email.event import normalise_message_id
from oncehook.email.readers import normalise, sendgrid_message_id
from oncehook.email.rows import EventCount, Existence, StoredFact, StoredStatus
from oncehook.email.suppressions import Allowed, Blocked, Policy, Suppression, SuppressionChange
from oncehook.model.timestamps import rfc3339
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction

PAGE = 500
__all__ = ["Allowed", "Blocked", "Email", "normalise"]


@dataclass(slots=True)
class CheckResult:
    """The result of a rebuild or a verification."""

    messages: int = 0
    addresses: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"messages": self.messages, "addresses": self.addresses, "differences": len(self.differences)}


class Email:
    """The email projection of an inbox: `inbox.email`."""

    def __init__(self, opened_store: Callable[[], AbstractAsyncContextManager[Store]], settings: Settings) -> None:
        """Create the queries. Each operation enters `opened_store()` once and uses the store that it yields."""
        self._opened_store = opened_store
        self.policy = Policy.of(
            settings.email_suppress, settings.email_soft_bounces, case_sensitive=settings.email_case_sensitive
        )
        self.retention = settings.email_retention

    @classmethod
    def of(cls, store: Store, settings: Settings) -> Self:
        """Create the queries for a store that the caller has opened and closes."""
        return cls(lambda: nullcontext(store), settings)

    async def can_send(self, to: str) -> Allowed | Blocked:
        """Return whether you may send to an address. `Blocked` is false, and names the event that is the reason."""
        async with self._opened_store() as store:
            return await suppressions.can_send(store, to, self.policy)

    async def status(self, message_id: str) -> list[dict[str, Any]]:
        """Return the status of a message for each recipient. `message_id` is the provider's id."""
        async with self._opened_store() as store:
            rows = await store.email.query("email_status_of", ids_of(message_id), StoredStatus)
        return [_status_json(row) for row in rows]

    async def events(self, message_id: str) -> list[dict[str, Any]]:
        """Return the email events of a message, oldest first by the provider's clock."""
        async with self._opened_store() as store:
            rows = await store.email.query("email_events_of", ids_of(message_id), StoredFact)
        return [_fact_json(row) for row in rows]

    async def suppression(self, to: str) -> dict[str, Any] | None:
        """Return the suppression of an address, or None if you may send to it."""
        address = self.policy.address(to)
        if not address:
            return None
        async with self._opened_store() as store:
            rows = await store.email.query(
                "email_suppressions_of", [address, suppressions.hash_address(address)], Suppression
            )
        return next((suppressions.as_json(row) for row in rows if row.since is not None), None)

    async def suppressions(self, *, after: str = "", limit: int = PAGE, search: str = "") -> list[dict[str, Any]]:
        """List suppressions in order of address, after `after`, with `search` in the address."""
        parameters = {"after": after, "limit": limit, "search": search}
        async with self._opened_store() as store:
            rows = await store.email.query("email_suppressions", parameters, Suppression)
        return [suppressions.as_json(row) for row in rows]

    async def suppress(self, to: str, *, actor: str, note: str | None = None) -> dict[str, Any]:
        """Suppress an address manually. Raises ValueError if it is not an email address."""
        return (await self.change([SuppressionChange(to, note)], actor=actor))[0]

    async def allow(self, to: str, *, actor: str, note: str | None = None) -> dict[str, Any]:
        """Remove a suppression manually. Earlier events no longer count; later ones do."""
        return (await self.change([SuppressionChange(to, note, remove=True)], actor=actor))[0]

    async def change(self, changes: Sequence[SuppressionChange], *, actor: str) -> list[dict[str, Any]]:
        """Add and remove suppressions in one transaction, and record the actor in the audit log.

        If an address is added several times, the earliest addition counts.
        """
        by_address: dict[str, SuppressionChange] = {}
        for change in sorted(changes, key=lambda change: change.since or "~", reverse=True):
            by_address[self.normalise_address(change.address)] = change

        async def work(transaction: Transaction) -> list[suppressions.Suppression]:
            hashed = await suppressions.changes_of_forgotten(transaction, by_address)
            rows = await suppressions.apply(transaction, {**hashed, **by_address}, actor, self.policy)
            for action, removes in (("suppress", False), ("allow", True)):
                hashes = [
                    suppressions.hash_address(address)
                    for address, change in sorted(by_address.items())
                    if change.remove is removes
                ]
                if hashes:
                    note = {"actor": actor, "action": action, "detail": json.dumps({"addresses": hashes})}
                    await status.run_query(transaction, "email_audit", note)
            return [row for row in rows if row.address in by_address]

        async with self._opened_store() as store:
            rows = await store.email.transact(work)
        return [suppressions.as_json(row) for row in rows]

    async def forget(self, to: str, *, actor: str) -> int:
        """Erase the facts and statuses of an address, and return how many rows. Its suppression stays as a hash."""
        address = self.policy.address(to)
        if address is None:
            return 0

        async def work(transaction: Transaction) -> int:
            erased = await suppressions.forget(transaction, address)
            if erased:
                detail = json.dumps({"address": suppressions.hash_address(address)})
                note = {"actor": actor, "action": "forget", "detail": detail}
                await status.run_query(transaction, "email_audit", note)
            return erased

        async with self._opened_store() as store:
            return await store.email.transact(work)

    async def knows(self, to: str) -> bool:
        """Return whether `forget` would erase anything."""
        address = self.policy.address(to)
        if address is None:
            return False
        async with self._opened_store() as store:
            return bool(await store.email.query("email_mentions", {"address": address}, Existence))

    def normalise_address(self, to: str) -> str:
        """Return an address in its normalized form. Raises ValueError if it is not an email address."""
        address = self.policy.address(to)
        if address is None:
            raise ValueError(f"{to!r} is not an email address")
        return address

    # -- counters -------------------------------------------------------------------------------------------------

    async def counts(
        self,
        by: Sequence[str] = ("day", "type"),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        source: str | None = None,
    ) -> list[dict[str, Any]]:
        """Count the stored email events by any of day, source, type, tag and domain.

        By tag, an event with two tags counts for both. Raises ValueError for an unknown dimension, and for a bound that
        is not a datetime.
        """
        _check_counts(by, since=since, until=until)
        dimensions = {f"by_{name}": name in by for name in DIMENSIONS}
        bounds = {"since": rfc3339(since), "until": rfc3339(until), "source": source}
        async with self._opened_store() as store:
            rows = await store.email.query("email_counts", {**dimensions, **bounds}, EventCount)
        group_columns = [name for name in DIMENSIONS if name in by]
        columns = [*group_columns, *(["bounce"] if "type" in group_columns else []), "events"]
        return [{name: getattr(row, name) for name in columns} for row in rows]

    # -- rebuilding -----------------------------------------------------------------------------------------------

    async def rebuild(self, progress: Callable[[CheckResult], None] | None = None) -> CheckResult:
        """Derive every status and suppression again from the facts, page by page, and fix differences."""
        return await self._check(True, progress)

    async def verify(self, progress: Callable[[CheckResult], None] | None = None) -> CheckResult:
        """Derive every status and suppression again and compare. Changes nothing; there should be no difference."""
        return await self._check(False, progress)

    async def _check(self, fix: bool, progress: Callable[[CheckResult], None] | None) -> CheckResult:
        result = CheckResult()
        async with self._opened_store() as store:
            after: Any = ("", "", "")
            while after is not None:
                after, count, differences = await store.email.transact(_Page(status.check_page, after, fix=fix))
                result.messages += count
                result.differences += differences
                _report(progress, result)
            after = ""
            while after is not None:
                page = _Page(suppressions.check_page, after, self.policy, fix=fix)
                after, count, differences = await store.email.transact(page)
                result.addresses += count
                result.differences += differences
                _report(progress, result)
        return result

    # -- pruning --------------------------------------------------------------------------------------------------

    async def prune(self) -> tuple[int, bool]:
        """Delete a batch of old facts. Returns how many, and whether there are more.

        Facts are old if their message had no event for `email_retention`. All facts of a message and recipient are
        deleted together, so the remaining facts still give the stored statuses.
        """
        if self.retention is None:
            return 0, False
        async with self._opened_store() as store:
            return await store.email.transact(_PruneBatch(await _before(store, self.retention)))

    async def prunable(self) -> int:
        """Count the facts that repeated calls of `prune` would delete."""
        if self.retention is None:
            return 0
        async with self._opened_store() as store:
            before = await _before(store, self.retention)

            async def work(transaction: Transaction) -> int:
                [(facts,)] = await status.run_query(transaction, "email_prunable", {"before": before})
                return int(facts)

            return await store.email.transact(work)


async def _before(store: Store, retention: float) -> str | None:
    """Return the database's time minus `retention` seconds."""
    return rfc3339(await store.operations.now() - timedelta(seconds=retention))


class _PruneBatch:
    """Deletes one batch of old facts in a transaction. Returns how many, and whether there are more."""

    def __init__(self, before: str | None) -> None:
        self.before = before

    async def __call__(self, transaction: Transaction) -> tuple[int, bool]:
        parameters = {"before": self.before, "most": PAGE}
        keys = await status.run_query(transaction, "email_old_status", parameters)
        rows = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
        deleted = len(await status.run_query(transaction, "email_drop_unassigned", parameters))
        has_more = deleted == PAGE or len(keys) == PAGE
        if rows:
            deleted += len(await status.run_query(transaction, "email_drop_events", rows))
            await status.run_query(transaction, "email_drop_status", rows)
        return deleted, has_more


DIMENSIONS = ("day", "source", "type", "tag", "domain")


def _check_counts(by: Sequence[str], **bounds: datetime | None) -> None:
    if isinstance(by, str):
        raise ValueError(f"by={by!r} is a string: pass a list of dimensions, such as [{by!r}]")
    for name in by:
        if name not in DIMENSIONS:
            raise ValueError(f"by has {name!r}, which is not a dimension; the dimensions are {', '.join(DIMENSIONS)}")
    for name, bound in bounds.items():
        if bound is not None and not isinstance(bound, datetime):
            raise ValueError(
                f"{name}={bound!r} is not a datetime: pass one, such as datetime.now(UTC) - timedelta(days=30)"
            )


class _Page:
    """Checks one page in a transaction."""

    def __init__(self, check: Callable[..., Any], after: Any, *more: Any, fix: bool) -> None:
        self.check, self.after, self.more, self.fix = check, after, more, fix

    async def __call__(self, transaction: Transaction) -> Any:
        return await self.check(transaction, self.after, PAGE, *self.more, fix=self.fix)


def _report(progress: Callable[[CheckResult], None] | None, result: CheckResult) -> None:
    if progress is not None:
        progress(result)


def _status_json(row: StoredStatus) -> dict[str, Any]:
    facts = row.as_json()
    return {"event": facts.pop("event_key") or None, **facts, "recipient": row.recipient or None}


def _fact_json(row: StoredFact) -> dict[str, Any]:
    parsed = {"tags": json.loads(row.tags), "metadata": json.loads(row.metadata)}
    return {**row.as_json(), **parsed, "recipient": row.recipient or None}


def ids_of(message_id: str) -> list[str]:
    """Return the ids under which a message may be stored. People may pass brackets, or SendGrid's longer id."""
    candidates = (normalise_message_id(message_id), sendgrid_message_id(message_id))
    return sorted({candidate for candidate in candidates if candidate})
