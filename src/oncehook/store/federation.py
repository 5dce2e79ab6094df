"""One store over all shards, for operators: the dashboard, the API, the command line and the metrics.

A call of an area goes to the shards that its policy names, and the answers are merged. Without a policy it goes to
`main`, which has the settings, the email tables, the audit log of sign-ins, and the counts of the receiver. Rows of a
source are taken only from the shard where the source lives, so that a move shows no event twice.

A shard that does not respond is left out, and `missing` has the reason. `main` must respond.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oncehook.config.shard_settings import MAIN_SHARD
from oncehook.model.errors import Unavailable
from oncehook.model.receipt import Receipt
from oncehook.model.timestamps import rfc3339
from oncehook.store import merging
from oncehook.store.merging import Merge
from oncehook.store.routes import Routes
from oncehook.store.rows import Selection
from oncehook.store.store import Store

Policy = Callable[["FederatedStore", str, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


class FederatedStore(Store):
    """Implements the areas of `Store` that operators use. Nothing can be claimed or leased through it."""

    missing: dict[str, str]

    def __init__(self, stores: Mapping[str, Store], routes: Routes) -> None:
        self.members = dict(stores)
        self.routes = routes
        self.missing = {}
        self.main = main = self.members[MAIN_SHARD]
        vars(self).update(vars(main))
        for area in POLICIES:
            setattr(self, area, Area(self, area))

    @property
    def stores(self) -> list[Store]:
        return list(self.members.values())

    async def gather(self, call: Callable[[Store], Awaitable[Any]]) -> dict[str, Any]:
        """Call all shards. Returns the answers of those that respond. Raises Unavailable if `main` does not."""
        answers = await asyncio.gather(*(call(store) for store in self.members.values()), return_exceptions=True)
        found: dict[str, Any] = {}
        for name, answer in zip(self.members, answers, strict=True):
            if isinstance(answer, Unavailable) and name != MAIN_SHARD:
                self.missing[name] = answer.detail
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self.missing.pop(name, None)
                found[name] = answer
        return found

    def lives_in(self, row: Any, shard: str) -> bool:
        """Whether the source of a row lives in a shard. A row without a source belongs to every shard."""
        source = row.get("source") if isinstance(row, dict) else getattr(row, "source", None)
        return not source or self.routes.lives_in(source, shard)

    def local(self, rows: Iterable[Any], shard: str) -> list[Any]:
        """The rows whose source lives in a shard."""
        return [row for row in rows if self.lives_in(row, shard)]

    async def owner(self, receipt: int) -> Store:
        """The store of the shard where a receipt lives. `main` if there is no such receipt."""
        found = await self.gather(lambda store: store.receipts.get(receipt))
        names = [name for name, row in found.items() if row is not None and self.lives_in(row, name)]
        return self.members[names[0]] if names else self.main

    async def owned(self, store: Store, receipts: Sequence[int]) -> list[int]:
        """Those of `receipts` that live in the shard of a store."""
        name = next(name for name, member in self.members.items() if member is store)
        ids = tuple(receipts)
        rows = await store.operations.select(Selection(receipts=ids), after=0, limit=max(1, len(ids))) if ids else []
        return [row.receipt for row, _ in rows if self.lives_in(row, name)]


class Area:
    """One area of the federated store, such as `receipts`."""

    def __init__(self, store: FederatedStore, area: str) -> None:
        self._store = store
        self._area = area

    def __getattr__(self, name: str) -> Any:
        policy = POLICIES[self._area].get(name)
        if policy is None:
            return getattr(getattr(self._store.main, self._area), name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await policy(self._store, f"{self._area}.{name}", args, kwargs)

        return call


def _bound(store: Store, path: str) -> Any:
    area, _, name = path.partition(".")
    return getattr(getattr(store, area), name)


# -- policies ----------------------------------------------------------------------------------------------------------


def everywhere(merge: Merge) -> Policy:
    """Call all shards with the same arguments, and merge the rows that live there."""

    async def call(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answers = await store.gather(lambda member: _bound(member, path)(*args, **kwargs))
        local = [store.local(a, name) if isinstance(a, list) else a for name, a in answers.items()]
        return merge(local)

    return call


async def of_owner(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the shard of the receipt that is the first argument."""
    receipt = args[0].receipt if isinstance(args[0], Receipt) else args[0]
    return await _bound(await store.owner(receipt), path)(*args, **kwargs)


def by_owner(merge: Merge) -> Policy:
    """Call each shard with those of the receipts, the first argument, that live there."""

    async def call(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async def change(member: Store) -> Any:
            owned = await store.owned(member, args[0])
            return await _bound(member, path)(owned, *args[1:], **kwargs) if owned else None

        answers = (await store.gather(change)).values()
        return merge([answer for answer in answers if answer is not None])

    return call


async def get_receipt(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return await _bound(await store.owner(args[0]), path)(*args, **kwargs)


def paged(position: Callable[[Any], Any], cursor: str, *, newest: bool, names: Sequence[str] = ()) -> Policy:
    """Return the next page over all shards. `position` orders the rows, and is the cursor of the next page.

    `names` are the parameter names of the positional arguments. Pass them if the cursor or the limit is positional.
    """

    async def call(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = (args, kwargs) if not names else ((), {**dict(zip(names, args, strict=True)), **kwargs})
        limit: int = kwargs["limit"]

        async def page(member: Store) -> list[Any]:
            name = next(name for name, one in store.members.items() if one is member)
            rows: list[Any] = []
            after = kwargs.get(cursor)
            while len(rows) < limit:  # rows of sources that have left, or are arriving, do not count
                options = kwargs if after is None else {**kwargs, cursor: after}
                found = await _bound(member, path)(*args, **options)
                rows += [row for row in found if store.lives_in(_row(row), name)]
                if len(found) < limit:
                    break
                after = position(found[-1])
            return rows

        merged = merging.concatenated(list((await store.gather(page)).values()))
        return sorted(merged, key=position, reverse=newest)[:limit]

    return call


def _row(row: Any) -> Any:
    """The receipt of a row that has it with a flag, or the row."""
    return row[0] if isinstance(row, tuple) else row


def _time_position(receipt: Receipt) -> tuple[str, int]:
    return rfc3339(receipt.received_at) or "", receipt.receipt


async def _window_end(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of the ends of all shards' windows, the newest: each shard has at most one window of rows before it."""
    answers = await store.gather(lambda member: member.receipts.window_end(*args, **kwargs))
    return max((end for end in answers.values() if end is not None), default=None)


async def _insert_backfill(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Insert each receipt in the shard of its event. None if the consumer was removed."""
    consumer, rows = args

    async def insert(member: Store) -> Any:
        owned = set(await store.owned(member, [row.main for row in rows]))
        chosen = [row for row in rows if row.main in owned]
        return await member.backfill.insert(consumer, chosen) if chosen else {}

    answers = (await store.gather(insert)).values()
    return (
        None if any(answer is None for answer in answers) else {k: v for answer in answers for k, v in answer.items()}
    )


async def _query(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Entities are in every shard, and the email tables in `main`."""
    if args[0] not in ENTITY_QUERIES:
        return await store.main.email.query(*args, **kwargs)
    answers = await store.gather(lambda member: member.email.query(*args, **kwargs))
    return merging.concatenated(list(answers.values()))


async def _measure(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Acks and rejections are counted in `main`, and everything else where the events are."""
    answers = await store.gather(lambda member: member.alerts.measure(*args, **kwargs))
    if args[0] == "history_age":
        rows = merging.concatenated(list(answers.values()))
        return sorted(rows, key=lambda row: row.value, reverse=True)[:1]
    return merging.concatenated([store.local(rows, name) for name, rows in answers.items()])


async def _reseal(store: FederatedStore, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Go through the shards one by one. The cursor is the shard and its own cursor."""
    part, cursor = args[0], args[1] if len(args) > 1 else None
    names = list(store.members)
    name, after = (names[0], None) if cursor is None else cursor
    page = await store.members[name].encrypted_rows.reseal(part, after)
    if page.next is not None:
        return replace(page, next=(name, page.next))
    following = names[names.index(name) + 1 :]
    return replace(page, next=(following[0], None) if following else None)


def _keys(answers: Sequence[Any]) -> Any:
    """Each key once."""
    return list({key.key_id: key for key in reversed(merging.concatenated(answers))}.values())


ENTITY_QUERIES = frozenset(("entities_of",))

concatenated = everywhere(merging.concatenated)
_sum = everywhere(merging.total)
_add = everywhere(merging.added)

POLICIES: dict[str, dict[str, Policy]] = {
    "receipts": {
        "find": paged(_time_position, "before", newest=True),
        "by_event_id": concatenated,
        "window_end": _window_end,
        "get": get_receipt,
        "payload": of_owner,
        "consumers_of": of_owner,
        "duplicates": of_owner,
        "attempts": of_owner,
        "sources": everywhere(merging.unique),
    },
    "operations": {
        "select": paged(lambda row: row[0].receipt, "after", newest=False),
        "count": everywhere(merging.summed("receipts")),
        "replay": by_owner(merging.concatenated),
        "retry_now": by_owner(merging.concatenated),
        "replays": concatenated,
        "run_outcomes": _add,
        "audited": paged(lambda row: row.id, "before", newest=True),
        "audited_run": concatenated,
    },
    "stats": {
        "counts": everywhere(merging.summed("receipts", greatest=["last_received_at"])),
        "duplicate_counts": everywhere(merging.summed("duplicates", "other_bodies")),
        "dead_letters": concatenated,
        "lags": everywhere(merging.summed(greatest=["lag"])),
        "rates": everywhere(merging.summed("number")),
        "source_totals": everywhere(merging.source_totals),
        "change_token": everywhere(merging.joined),
    },
    "effects": {
        "find": paged(lambda row: row.id, "before", newest=True),
        "noops": of_owner,
        "noop_counts": everywhere(merging.summed("noops")),
        "counts": _add,
        "bounded_counts": _add,
        "count_failed": everywhere(merging.totals),
        "waiting": everywhere(merging.summed("effects", "crashed", greatest=["lag"])),
        "replay": concatenated,
    },
    "pauses": {
        "pause": everywhere(any),
        "resume": everywhere(any),
        "active": everywhere(merging.summed(greatest=["paused_at"])),
    },
    "roster": {"unhandled": everywhere(merging.summed("number", greatest=["since"]))},
    "consumers": {
        "open_receipts": _add,
        "remove": everywhere(merging.unique),
        "end_receipts": _sum,
    },
    "backfill": {
        "page": paged(
            lambda row: (row.received_at, row.receipt), "after", newest=False, names=("range_", "after", "limit")
        ),
        "count": _sum,
        "payloads": concatenated,
        "insert": _insert_backfill,
    },
    "retention": {
        "prunable": everywhere(merging.summed("receipts", "payloads")),
        "payloads": paged(lambda row: row.receipt_id, "after", newest=False, names=("after", "limit")),
        "with_object": everywhere(merging.unique),
        "erase": by_owner(merging.total),
        "tenant_counts": everywhere(merging.struct_total),
        "erase_tenant_state": _sum,
    },
    "encrypted_rows": {
        "registered": everywhere(_keys),
        "register": everywhere(lambda answers: None),
        "unregister": everywhere(lambda answers: None),
        "counts": everywhere(merging.summed("number")),
        "reseal": _reseal,
        "payloads_of": concatenated,
        "erase_texts": _sum,
    },
    "alerts": {"measure": _measure, "incidents": concatenated},
    "email": {"query": _query},
    "wakeups": {"notify": everywhere(lambda answers: None)},
    "schema": {"pending": concatenated, "migrate": concatenated},
}
"""How each method of an area is answered. A method without a policy is answered by `main`."""
