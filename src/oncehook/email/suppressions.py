"""Suppressions: the addresses that you must not send to, since when, and which event is the reason.

A row holds the earliest entry, by the provider's time, since a person last removed the suppression. Entries come from
facts that the policy names, and from additions by people. The row is the same in whatever order entries arrive. A row
whose facts were pruned stays: deleted facts never remove a suppression.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from oncehook.email.event import HARD, MAX_CLOCK_AHEAD, SOFT, EmailType, clean, normalise_address
from oncehook.email.status import Difference, Fact, run_query
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import parse_time
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction

SOFT_BOUNCES, MANUAL = "soft_bounces", "manual"
FORGOTTEN = re.compile(r"sha256:[0-9a-f]{64}")
"""The hash under which the suppression of a forgotten address is stored."""

POLICY: Mapping[tuple[str, str | None], str] = {
    (EmailType.BOUNCED, HARD): "hard_bounce",
    (EmailType.COMPLAINED, None): "complaint",
    (EmailType.UNSUBSCRIBED, None): "unsubscribe",
    (EmailType.REJECTED, HARD): "rejected",
}
"""(type, bounce) → the reason for which a single fact suppresses its recipient."""

REASONS = (*POLICY.values(), SOFT_BOUNCES)
WINDOW = timedelta(days=30)
"""The time within which soft bounces of different messages count together."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The reasons that suppress an address, the soft bounces in 30 days that do, and whether case matters."""

    reasons: frozenset[str] = frozenset(REASONS)
    soft_bounces: int = 5
    case_sensitive: bool = False

    @classmethod
    def of(cls, reasons: Sequence[str], soft_bounces: int, *, case_sensitive: bool = False) -> "Policy":
        return cls(frozenset(reasons), soft_bounces, case_sensitive)

    def address(self, value: Any) -> str | None:
        """Return an address in its normalized form, or None. The hash of a forgotten address is one too."""
        if isinstance(value, str) and FORGOTTEN.fullmatch(value):
            return value
        address = normalise_address(value)
        return address if address is None or self.case_sensitive else address.lower()

    @property
    def counts_soft(self) -> bool:
        return SOFT_BOUNCES in self.reasons and self.soft_bounces > 0

    def reason(self, fact: Fact) -> str | None:
        """Return the reason for which this fact alone suppresses its recipient, or None."""
        reason = POLICY.get((fact.type, fact.bounce))
        return reason if reason in self.reasons and fact.recipient else None


class Entry(msgspec.Struct, frozen=True):
    """One reason to suppress an address. The first by time, source and key counts."""

    since: str
    source: str
    event_key: str
    reason: str
    message_id: str = ""


class Suppression(msgspec.Struct):
    """A row of `webhook_suppressions`."""

    address: str
    since: str | None = None
    reason: str | None = None
    source: str = ""
    event_key: str = ""
    message_id: str = ""
    added_at: str | None = None
    added_reason: str | None = None
    removed_at: str | None = None
    note: str | None = None
    actor: str | None = None

    @property
    def entry(self) -> Entry | None:
        if self.since is None:
            return None
        return Entry(self.since, self.source, self.event_key, self.reason or "", self.message_id)

    def set_entry(self, entry: Entry | None) -> None:
        """Set the entry that counts. None: the address is not suppressed."""
        entry = entry or Entry(None, "", "", None)  # type: ignore[arg-type]  # not suppressed
        self.since, self.source, self.event_key = entry.since, entry.source, entry.event_key
        self.reason, self.message_id = entry.reason, entry.message_id


# -- deriving entries -----------------------------------------------------------------------------------------------


def earliest(facts: Iterable[Fact], policy: Policy, removed_at: str | None = None) -> Entry | None:
    """Return the first entry from one address's facts after `removed_at`."""
    later = [fact for fact in facts if removed_at is None or fact.occurred_at > removed_at]
    entries = [_entry(fact, reason) for fact in later if (reason := policy.reason(fact))]
    return min([*entries, *_soft_bounce_entry(later, policy)], default=None, key=_order)


def _order(entry: Entry) -> tuple[str, str, str]:
    return entry.since, entry.source, entry.event_key


def _entry(fact: Fact, reason: str) -> Entry:
    return Entry(fact.occurred_at, fact.source, fact.key, reason, fact.message_id)


def _soft_bounce_entry(facts: Iterable[Fact], policy: Policy) -> list[Entry]:
    """Return the entry of the soft bounce that reached the limit within the window, if there is one."""
    if not policy.counts_soft:
        return []
    first: dict[tuple[str, str], Fact] = {}
    for fact in sorted(facts, key=lambda fact: (fact.occurred_at, fact.source, fact.key)):
        if (fact.type, fact.bounce) == (EmailType.BOUNCED, SOFT):
            first.setdefault((fact.source, fact.message_id or f"key {fact.key}"), fact)
    bounced = list(first.values())
    most = policy.soft_bounces
    for start, fact in zip(bounced, bounced[most - 1 :], strict=False):
        if _time(fact.occurred_at) - _time(start.occurred_at) <= WINDOW:
            return [_entry(fact, SOFT_BOUNCES)]
    return []


def _time(text: str) -> datetime:
    time = parse_time(text)
    assert time is not None
    return time


def derive_entry(row: Suppression, facts: Sequence[Fact], policy: Policy) -> Entry | None:
    """Derive the entry that counts from an address's facts, a person's addition, and an entry of pruned facts."""
    entries = [earliest(facts, policy, row.removed_at)]
    if row.added_at is not None and (row.removed_at is None or row.added_at > row.removed_at):
        entries.append(Entry(row.added_at, "", "", row.added_reason or MANUAL))
    stored = row.entry
    is_live = stored is not None and (row.removed_at is None or stored.since > row.removed_at)
    if stored is not None and is_live and _may_be_pruned(stored, facts, policy):
        entries.append(stored)
    return min((entry for entry in entries if entry is not None), default=None, key=_order)


def _may_be_pruned(entry: Entry, facts: Sequence[Fact], policy: Policy) -> bool:
    """Return whether the facts of an entry may be pruned. Of several soft bounces, the older ones are pruned first."""
    if entry.reason == SOFT_BOUNCES and policy.counts_soft:
        return True
    return bool(entry.event_key) and (entry.source, entry.event_key) not in {fact.identity for fact in facts}


# -- the table ------------------------------------------------------------------------------------------------------


async def suppress(transaction: Transaction, new: Sequence[Fact], policy: Policy) -> None:
    """Update the suppressions from new facts, in the transaction that recorded them."""
    entries: dict[str, list[Entry]] = defaultdict(list)
    for fact in new:
        reason = policy.reason(fact)
        if reason is not None:
            entries[fact.recipient].append(_entry(fact, reason))
    soft = sorted({f.recipient for f in new if f.bounce == SOFT and f.recipient}) if policy.counts_soft else []
    if soft:
        await run_query(transaction, "email_lock_counts", soft)
        for to, facts, removed_at in await _facts(transaction, soft):
            entry = _soft_bounce_entry(
                [fact for fact in facts if removed_at is None or fact.occurred_at > removed_at], policy
            )
            entries[to] += entry
    rows = [Suppression(to) for to in sorted(entries) if entries[to]]
    for row in rows:
        row.set_entry(min(entries[row.address], key=_order))
    if rows:
        await run_query(transaction, "email_suppress", rows)


async def _facts(transaction: Transaction, addresses: Sequence[str]) -> list[tuple[str, list[Fact], str | None]]:
    """Read the facts that may suppress each address, and when its suppression was last removed."""
    facts: dict[str, list[Fact]] = {to: [] for to in addresses}
    removed: dict[str, str | None] = dict.fromkeys(addresses)
    for to, source, key, type_, bounce, message_id, occurred_at, removed_at in await run_query(
        transaction, "email_suppressing_events", addresses
    ):
        facts[to].append(
            Fact(
                source=source,
                key=key,
                type=type_,
                bounce=bounce,
                message_id=message_id,
                recipient=to,
                occurred_at=occurred_at,
            )
        )
        removed[to] = removed_at
    return [(to, facts[to], removed[to]) for to in addresses]


@dataclass(frozen=True, slots=True)
class SuppressionChange:
    """A person's change: suppress an address since `since` or now, or remove its suppression now."""

    address: str
    note: str | None = None
    remove: bool = False
    reason: str = MANUAL
    since: str | None = None


async def changes_of_forgotten(
    transaction: Transaction, changes: Mapping[str, SuppressionChange]
) -> dict[str, SuppressionChange]:
    """Return the same removals for suppressions that are stored under a hash. Notes, which may name it, are dropped."""
    hashes = {hash_address(to): replace(change, note=None) for to, change in changes.items() if change.remove}
    rows = await run_query(transaction, "email_suppressions_of", sorted(hashes))
    return {row[0]: hashes[row[0]] for row in rows}


async def apply(
    transaction: Transaction, changes: Mapping[str, SuppressionChange], actor: str, policy: Policy
) -> list[Suppression]:
    """Apply the changes, and return the changed rows."""
    addresses = sorted(changes)
    ((now,),) = await run_query(transaction, "email_now", [])
    await run_query(transaction, "email_lock_counts", addresses)
    await run_query(transaction, "email_lock_addresses", addresses)
    rows = {row[0]: Suppression(*row) for row in await run_query(transaction, "email_lock_suppressions", addresses)}
    for to, facts, _ in await _facts(transaction, addresses):
        row = rows[to]
        _change(row, changes[to], actor, now, facts)
        row.set_entry(derive_entry(row, facts, policy))
    await run_query(transaction, "email_write_suppressions", [rows[to] for to in addresses])
    return [rows[to] for to in addresses]


def _change(row: Suppression, change: SuppressionChange, actor: str, now: str, facts: Sequence[Fact]) -> None:
    """Apply a person's change to a row.

    It counts as later than all earlier changes, even if the clock went back, and as later than known facts of a
    provider whose clock is ahead of ours.
    """
    row.note, row.actor = change.note and clean(change.note), actor
    if change.remove:
        reach = rfc3339(_time(now) + MAX_CLOCK_AHEAD) or now
        known = [at for at in (row.since or "", *(fact.occurred_at for fact in facts)) if at <= reach]
        row.removed_at = max([now, row.removed_at or "", *known])
        row.added_at = row.added_at and min(row.added_at, row.removed_at)
        return
    at = min(change.since or "~", _after(row.removed_at, now))
    if row.event_key and (row.since, row.reason) == (at, change.reason):
        return  # an export is imported again: the event of this entry is known
    is_live = row.added_at is not None and (row.removed_at is None or row.added_at > row.removed_at)
    if not is_live or at < (row.added_at or at):
        row.added_at, row.added_reason = at, change.reason


def _after(removed_at: str | None, now: str) -> str:
    """Return now, or a microsecond after the removal if that is later."""
    if removed_at is None or now > removed_at:
        return now
    return rfc3339(_time(removed_at) + timedelta(microseconds=1)) or now


async def check_page(
    transaction: Transaction, after: str, limit: int, policy: Policy, *, fix: bool
) -> tuple[str | None, int, list[Difference]]:
    """Derive the next suppressions again and compare. Returns the next cursor, the number, and the differences."""
    addresses = [row[0] for row in await run_query(transaction, "email_addresses", {"after": after, "limit": limit})]
    if not addresses:
        return None, 0, []
    wrong = await _find_wrong(transaction, addresses, policy)
    if wrong:
        # A missing row could not be locked, so a concurrent projection may have inserted it: compare again.
        wrong = await _find_wrong(transaction, [row.address for row, _ in wrong], policy)
    differences = [
        {"address": row.address, "kept": row.reason, "folded": entry and entry.reason} for row, entry in wrong
    ]
    for row, entry in wrong:
        row.set_entry(entry)
    if wrong and fix:
        await run_query(transaction, "email_write_suppressions", [row for row, _ in wrong])
    return addresses[-1], len(addresses), differences


async def _find_wrong(
    transaction: Transaction, addresses: Sequence[str], policy: Policy
) -> list[tuple[Suppression, Entry | None]]:
    """Return the rows that differ from their facts, with the derived entry. Rows are locked before facts are read."""
    rows = {row[0]: Suppression(*row) for row in await run_query(transaction, "email_lock_suppressions", addresses)}
    wrong = []
    for to, facts, _ in await _facts(transaction, addresses):
        row = rows.get(to) or Suppression(to)
        entry = derive_entry(row, facts, policy)
        if row.entry != entry:
            wrong.append((row, entry))
    return wrong


# -- querying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allowed:
    """You may send to the address."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Blocked:
    """You must not send to the address. Names the event, the reason and the time by the provider's clock."""

    event: str | None
    reason: str
    since: datetime | None
    source: str | None = None

    def __bool__(self) -> bool:
        return False


def hash_address(to: str) -> str:
    """Return the hash under which the suppression of a forgotten address is stored."""
    return "sha256:" + hashlib.sha256(to.encode()).hexdigest()


async def can_send(store: Store, to: str, policy: Policy) -> Allowed | Blocked:
    """Return whether you may send to an address. A text that is not an address is blocked."""
    address = None if FORGOTTEN.fullmatch(to) else policy.address(to)
    if address is None:
        return Blocked(None, "not an address", None)
    for row in await store.email.query("email_suppressions_of", [address, hash_address(address)], Suppression):
        if row.since is not None:
            return Blocked(row.event_key or None, row.reason or "", parse_time(row.since), row.source or None)
    return Allowed()


def as_json(row: Suppression) -> dict[str, Any]:
    """Return a suppression as JSON data."""
    names = (
        "address",
        "reason",
        "since",
        "source",
        "event_key",
        "message_id",
        "added_at",
        "removed_at",
        "note",
        "actor",
    )
    fields = {name: getattr(row, name) or None for name in names}
    fields["event"] = fields.pop("event_key")
    return fields


async def forget(transaction: Transaction, to: str) -> int:
    """Erase the data of an address, and return the number of rows. Its suppression stays in force under a hash."""
    parameters = {"address": to}
    erased = 0
    await run_query(transaction, "email_secure_delete", parameters)
    for name in (
        "email_forget_events",
        "email_forget_mentions",
        "email_forget_status",
        "email_forget_reasons",
        "email_forget_notes",
    ):
        erased += len(await run_query(transaction, name, parameters))
    plain = [row[0] for row in await run_query(transaction, "email_forget_addresses", parameters)]
    if plain:
        old = [Suppression(*row) for row in await run_query(transaction, "email_lock_suppressions", plain)]
        await run_query(transaction, "email_write_suppressions", [_hashed_row(row) for row in old])
        await run_query(transaction, "email_drop_suppressions", plain)
    return erased + len(plain)


def _hashed_row(row: Suppression) -> Suppression:
    hashed = msgspec.structs.replace(row, address=hash_address(row.address), note=None, message_id="")
    if hashed.event_key:
        hashed.event_key = "forgotten"  # the key may contain the address
    return hashed
