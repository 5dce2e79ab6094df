"""Suppressions: who must not be sent to, since when, and which event says so.

A row is the earliest entry, by the provider's time, after the last time that a person lifted it. Entries are the facts
that the policy names, a person's additions and a person's removals; in whatever order they come, the row is the same.
A row whose facts were pruned stays: what is not known any more un-suppresses nobody.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from oncehook.email.event import AHEAD, HARD, SOFT, EmailType, address, clean
from oncehook.email.status import Difference, Fact, ask
from oncehook.model.timestamps import rfc3339
from oncehook.providers.expressions import parse_time
from oncehook.store.store import Store
from oncehook.store.transaction import Transaction

SOFT_BOUNCES, MANUAL = "soft_bounces", "manual"
FORGOTTEN = re.compile(r"sha256:[0-9a-f]{64}")
"""An address that was forgotten, as its suppression still knows it."""

POLICY: Mapping[tuple[str, str | None], str] = {
    (EmailType.BOUNCED, HARD): "hard_bounce",
    (EmailType.COMPLAINED, None): "complaint",
    (EmailType.UNSUBSCRIBED, None): "unsubscribe",
    (EmailType.REJECTED, HARD): "rejected",
}
"""(type, bounce) → the reason for which a single fact suppresses its recipient."""

REASONS = (*POLICY.values(), SOFT_BOUNCES)
WINDOW = timedelta(days=30)
"""Soft bounces count together when they are of different messages within so long."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which reasons count, how many soft bounces within 30 days are one, and whether `Jane@` and `jane@` are two."""

    reasons: frozenset[str] = frozenset(REASONS)
    soft_bounces: int = 5
    case_sensitive: bool = False

    @classmethod
    def of(cls, reasons: Sequence[str], soft_bounces: int, *, case_sensitive: bool = False) -> "Policy":
        return cls(frozenset(reasons), soft_bounces, case_sensitive)

    def address(self, given: Any) -> str | None:
        """An address as it is compared; None for what is no address. The hash of a forgotten one is an address too."""
        if isinstance(given, str) and FORGOTTEN.fullmatch(given):
            return given
        found = address(given)
        return found if found is None or self.case_sensitive else found.lower()

    @property
    def counts_soft(self) -> bool:
        return SOFT_BOUNCES in self.reasons and self.soft_bounces > 0

    def reason(self, fact: Fact) -> str | None:
        """Why this fact alone suppresses its recipient, or None."""
        found = POLICY.get((fact.type, fact.bounce))
        return found if found in self.reasons and fact.recipient else None


class Entry(msgspec.Struct, frozen=True):
    """One reason to suppress an address. The least, by time, source and key, is the one that counts."""

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

    def put(self, entry: Entry | None) -> None:
        """Let this entry be the one that counts."""
        entry = entry or Entry(None, "", "", None)  # type: ignore[arg-type]  # nothing suppresses it
        self.since, self.source, self.event_key = entry.since, entry.source, entry.event_key
        self.reason, self.message_id = entry.reason, entry.message_id


# -- the fold -------------------------------------------------------------------------------------------------------


def earliest(facts: Iterable[Fact], policy: Policy, removed_at: str | None = None) -> Entry | None:
    """The first entry of one address's facts after `removed_at`."""
    later = [fact for fact in facts if removed_at is None or fact.occurred_at > removed_at]
    entries = [_entry(fact, reason) for fact in later if (reason := policy.reason(fact))]
    return min([*entries, *_soft(later, policy)], default=None, key=_order)


def _order(entry: Entry) -> tuple[str, str, str]:
    return entry.since, entry.source, entry.event_key


def _entry(fact: Fact, reason: str) -> Entry:
    return Entry(fact.occurred_at, fact.source, fact.key, reason, fact.message_id)


def _soft(facts: Iterable[Fact], policy: Policy) -> list[Entry]:
    """The soft bounce with which there were enough, of different messages, within the window."""
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
    found = parse_time(text)
    assert found is not None
    return found


def refold(row: Suppression, facts: Sequence[Fact], policy: Policy) -> Entry | None:
    """What counts for an address: of its facts, what a person added, and what it has of facts that were pruned."""
    entries = [earliest(facts, policy, row.removed_at)]
    if row.added_at is not None and (row.removed_at is None or row.added_at > row.removed_at):
        entries.append(Entry(row.added_at, "", "", row.added_reason or MANUAL))
    kept = row.entry
    if kept is not None and (row.removed_at is None or kept.since > row.removed_at) and _is_pruned(kept, facts, policy):
        entries.append(kept)
    return min((entry for entry in entries if entry is not None), default=None, key=_order)


def _is_pruned(entry: Entry, facts: Sequence[Fact], policy: Policy) -> bool:
    """Whether what says so may be gone. Of several soft bounces the older ones go first; what was enough stays."""
    if entry.reason == SOFT_BOUNCES and policy.counts_soft:
        return True
    return bool(entry.event_key) and (entry.source, entry.event_key) not in {fact.at for fact in facts}


# -- the table ------------------------------------------------------------------------------------------------------


async def suppress(transaction: Transaction, new: Sequence[Fact], policy: Policy) -> None:
    """Fold new facts into the suppressions, in the transaction that recorded them."""
    entries: dict[str, list[Entry]] = defaultdict(list)
    for fact in new:
        reason = policy.reason(fact)
        if reason is not None:
            entries[fact.recipient].append(_entry(fact, reason))
    soft = sorted({f.recipient for f in new if f.bounce == SOFT and f.recipient}) if policy.counts_soft else []
    if soft:
        await ask(transaction, "email_lock_counts", soft)
        for to, facts, removed_at in await _facts(transaction, soft):
            found = _soft([fact for fact in facts if removed_at is None or fact.occurred_at > removed_at], policy)
            entries[to] += found
    rows = [Suppression(to) for to in sorted(entries) if entries[to]]
    for row in rows:
        row.put(min(entries[row.address], key=_order))
    if rows:
        await ask(transaction, "email_suppress", rows)


async def _facts(transaction: Transaction, addresses: Sequence[str]) -> list[tuple[str, list[Fact], str | None]]:
    """The facts that may suppress each address, and when it was last lifted."""
    facts: dict[str, list[Fact]] = {to: [] for to in addresses}
    removed: dict[str, str | None] = dict.fromkeys(addresses)
    for to, source, key, type_, bounce, message_id, occurred_at, removed_at in await ask(
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
class Change:
    """What a person does to an address: add it, at a time of its own or now, or lift it now."""

    address: str
    note: str | None = None
    remove: bool = False
    reason: str = MANUAL
    since: str | None = None


async def forgotten(transaction: Transaction, changes: Mapping[str, Change]) -> dict[str, Change]:
    """Whoever lifts an address means also what is kept of it by its hash. A note might name it, and is left out."""
    hashes = {hashed(to): replace(change, note=None) for to, change in changes.items() if change.remove}
    kept = await ask(transaction, "email_suppressions_of", sorted(hashes))
    return {row[0]: hashes[row[0]] for row in kept}


async def apply(
    transaction: Transaction, changes: Mapping[str, Change], actor: str, policy: Policy
) -> list[Suppression]:
    """Make the changes and refold their addresses; the rows as they are now."""
    addresses = sorted(changes)
    ((now,),) = await ask(transaction, "email_now", [])
    await ask(transaction, "email_lock_counts", addresses)
    await ask(transaction, "email_lock_addresses", addresses)
    rows = {row[0]: Suppression(*row) for row in await ask(transaction, "email_lock_suppressions", addresses)}
    for to, facts, _ in await _facts(transaction, addresses):
        row = rows[to]
        _change(row, changes[to], actor, now, facts)
        row.put(refold(row, facts, policy))
    await ask(transaction, "email_write_suppressions", [rows[to] for to in addresses])
    return [rows[to] for to in addresses]


def _change(row: Suppression, change: Change, actor: str, now: str, facts: Sequence[Fact]) -> None:
    """What a person does counts after what a person did before, however little time is between, and if it went back.

    It also counts after what is known already, from a provider whose clock is ahead of ours.
    """
    row.note, row.actor = change.note and clean(change.note), actor
    if change.remove:
        reach = rfc3339(_time(now) + AHEAD) or now
        known = [at for at in (row.since or "", *(fact.occurred_at for fact in facts)) if at <= reach]
        row.removed_at = max([now, row.removed_at or "", *known])
        row.added_at = row.added_at and min(row.added_at, row.removed_at)
        return
    at = min(change.since or "~", _after(row.removed_at, now))
    if row.event_key and (row.since, row.reason) == (at, change.reason):
        return  # what an export says comes back: the event that says so is known
    is_live = row.added_at is not None and (row.removed_at is None or row.added_at > row.removed_at)
    if not is_live or at < (row.added_at or at):
        row.added_at, row.added_reason = at, change.reason


def _after(removed_at: str | None, now: str) -> str:
    """Now, or the next moment after the removal."""
    if removed_at is None or now > removed_at:
        return now
    return rfc3339(_time(removed_at) + timedelta(microseconds=1)) or now


async def check_page(
    transaction: Transaction, after: str, limit: int, policy: Policy, *, mend: bool
) -> tuple[str | None, int, list[Difference]]:
    """Refold the next addresses and compare: where to go on, how many were looked at, and what differed."""
    addresses = [row[0] for row in await ask(transaction, "email_addresses", {"after": after, "limit": limit})]
    if not addresses:
        return None, 0, []
    wrong = await _wrong(transaction, addresses, policy)
    if wrong:
        # A row that was not there could not be held, and a fold may have made it meanwhile: now it is there.
        wrong = await _wrong(transaction, [row.address for row, _ in wrong], policy)
    differences = [{"address": row.address, "kept": row.reason, "folded": made and made.reason} for row, made in wrong]
    for row, made in wrong:
        row.put(made)
    if wrong and mend:
        await ask(transaction, "email_write_suppressions", [row for row, _ in wrong])
    return addresses[-1], len(addresses), differences


async def _wrong(
    transaction: Transaction, addresses: Sequence[str], policy: Policy
) -> list[tuple[Suppression, Entry | None]]:
    """The rows that do not follow from the facts, and what does. They are held before the facts are read."""
    rows = {row[0]: Suppression(*row) for row in await ask(transaction, "email_lock_suppressions", addresses)}
    found = []
    for to, facts, _ in await _facts(transaction, addresses):
        row = rows.get(to) or Suppression(to)
        made = refold(row, facts, policy)
        if row.entry != made:
            found.append((row, made))
    return found


# -- asking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allowed:
    """Nothing speaks against sending."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Blocked:
    """Do not send: which event says so, why, and since when by the provider's clock."""

    event: str | None
    reason: str
    since: datetime | None
    source: str | None = None

    def __bool__(self) -> bool:
        return False


def hashed(to: str) -> str:
    """An address that was forgotten, as its suppression still knows it."""
    return "sha256:" + hashlib.sha256(to.encode()).hexdigest()


async def can_send(store: Store, given: str, policy: Policy) -> Allowed | Blocked:
    """Whether an address may be sent to. What is no address may not."""
    to = None if FORGOTTEN.fullmatch(given) else policy.address(given)
    if to is None:
        return Blocked(None, "not an address", None)
    for row in await store.email.query("email_suppressions_of", [to, hashed(to)], Suppression):
        if row.since is not None:
            return Blocked(row.event_key or None, row.reason or "", parse_time(row.since), row.source or None)
    return Allowed()


def as_json(row: Suppression) -> dict[str, Any]:
    """A suppression as it is printed."""
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
    shown = {name: getattr(row, name) or None for name in names}
    shown["event"] = shown.pop("event_key")
    return shown


async def forget(transaction: Transaction, to: str) -> int:
    """Erase what is known of an address; its suppression stays, by a hash, and still counts. How much there was."""
    given = {"address": to}
    erased = 0
    await ask(transaction, "email_secure_delete", given)
    for name in (
        "email_forget_events",
        "email_forget_mentions",
        "email_forget_status",
        "email_forget_reasons",
        "email_forget_notes",
    ):
        erased += len(await ask(transaction, name, given))
    plain = [row[0] for row in await ask(transaction, "email_forget_addresses", given)]
    if plain:
        old = [Suppression(*row) for row in await ask(transaction, "email_lock_suppressions", plain)]
        await ask(transaction, "email_write_suppressions", [_forgotten(row) for row in old])
        await ask(transaction, "email_drop_suppressions", plain)
    return erased + len(plain)


def _forgotten(row: Suppression) -> Suppression:
    kept = msgspec.structs.replace(row, address=hashed(row.address), note=None, message_id="")
    if kept.event_key:
        kept.event_key = "forgotten"  # a key may be made of the address
    return kept
