"""Checks the guarantees of Oncehook on a live database, and changes nothing.

Tables are read in windows by their key, each with short statements. Rows change during the check, so a row that looks
wrong is read again after a moment. It is a violation only if it is still wrong.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from oncehook.model.errors import Unavailable
from oncehook.operations.fsck_bodies import Fingerprints, body_problem
from oncehook.operations.fsck_checks import CHECKS, INVARIANTS, Check
from oncehook.operations.fsck_schema import schema_differences
from oncehook.store.rows import MAX_REJECTIONS, FsckRow, FsckWindow
from oncehook.store.store import Store

WINDOW = 2000
"""Rows per statement."""

BODIES = 100
"""Payloads per statement: each may have a megabyte."""

AUDIT_PAGE = 50
"""Rows of the audit log per statement. Each may name 500 receipts."""

MAX_REPLAYS = 2_000_000
"""With more replays than this in the audit log, they are not compared: they would not fit into memory."""

AGAIN_SECONDS = 0.3
"""After how many seconds a row is read again before it is reported."""

SHOWN = 100
"""How many rows of one check are reported. The others are counted."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What one check found in one database."""

    check: Check
    shard: int = 0  # the position of the database among `store.stores`
    examined: int = 0
    number: int = 0  # of violations
    rows: list[FsckRow] = field(default_factory=list)  # the first of them
    unknown: Counter[str] = field(default_factory=Counter)  # what could not be compared, and how often
    problem: str | None = None  # why the check did not reach its end

    def add(self, rows: Iterable[FsckRow]) -> None:
        """Count violations, and keep the first ones."""
        for row in rows:
            self.number += 1
            if len(self.rows) < SHOWN:
                self.rows.append(row)


@dataclass(slots=True)
class Report:
    """What all checks found."""

    results: list[Result]

    @property
    def is_clean(self) -> bool:
        """Whether all checks reached their end and found no violation."""
        return not any(result.number or result.problem for result in self.results)

    def of(self, invariant: str) -> list[Result]:
        """The results that are evidence for a guarantee."""
        return [result for result in self.results if invariant in result.check.invariants]

    def examined(self, invariant: str) -> int:
        """The number of rows that the check with the most of them has read."""
        results = self.of(invariant)
        tables = [result.examined for result in results if result.check.table is not None]
        return max(tables or [result.examined for result in results], default=0)

    def status(self, invariant: str) -> str:
        """`violated`, `checked`, or `cannot be checked here`."""
        results = self.of(invariant)
        if any(result.number for result in results):
            return "violated"
        return "checked" if any(result.problem is None for result in results) else "cannot be checked here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsck:
    """A check of a whole inbox. `source` and `since` narrow it to some events."""

    fingerprints: Fingerprints
    source: str | None = None
    since: datetime | None = None
    bodies: bool = True  # whether payloads are read
    progress: Progress = lambda text: None

    async def run(self, store: Store) -> Report:
        """Check all databases of an inbox."""
        report = Report([])
        present = [shard for shard in enumerate(store.stores) if await self._answers(store, shard[1])]
        audited = await self._audited_replays([member for _, member in present])
        for shard, member in present:
            for table, checks in groupby(CHECKS, lambda check: check.table):
                results = [Result(check, shard) for check in checks if self.bodies or check.name != "bodies"]
                await self._check_table(member, table, results, audited)
                report.results += results
        return report

    async def _answers(self, store: Store, member: Store) -> bool:
        """Whether a shard answers. Raises Unavailable for the first one, without which nothing can be checked."""
        try:
            await member.operations.now()
        except Unavailable:
            if member is store.stores[0]:
                raise
            return False
        return True

    async def _check_table(
        self, store: Store, table: str | None, results: Sequence[Result], audited: Counter[int] | None
    ) -> None:
        if table is None:
            for result in results:
                self.progress(result.check.name)
                await self._check_window(store, result, None, audited)
            return
        is_bodies = table == "bodies"
        window: FsckWindow | None = None
        while results:
            window = await self._next_window(store, table, results, window)
            if window is None:
                return
            for result in results:
                await self._check_window(store, result, window, audited)
            self.progress(f"{results[0].examined:,} {'payloads' if is_bodies else table}")

    async def _next_window(
        self, store: Store, table: str, results: Sequence[Result], window: FsckWindow | None
    ) -> FsckWindow | None:
        name, limit = ("receipts", BODIES) if table == "bodies" else (table, WINDOW)
        try:
            return await store.fsck.window(name, window, limit, source=self.source, since=self.since)
        except Unavailable as error:
            await store.operations.now()
            for result in results:
                result.problem = error.detail
            return None

    async def _check_window(
        self, store: Store, result: Result, window: FsckWindow | None, audited: Counter[int] | None
    ) -> None:
        """Check a window. If its statement fails, for instance because a table is missing, the check ends there."""
        if result.problem is not None:
            return
        try:
            await self._check_twice(store, result, window, audited)
        except Unavailable as error:
            await store.operations.now()  # raises Unavailable if the database is gone
            result.problem = error.detail

    async def _check_twice(
        self, store: Store, result: Result, window: FsckWindow | None, audited: Counter[int] | None
    ) -> None:
        """Check a window, and check it again if there are violations. Those of both times are reported."""
        if window is not None:
            result.examined += window.number
        first = await self._find(store, result, window, audited)
        if first:
            await asyncio.sleep(AGAIN_SECONDS)
            keys = {row.key for row in first}
            result.unknown.clear()
            if result.check.name == "replays" and audited is not None:  # a replay since the log was read
                for row in first:
                    known = len(await store.operations.replays(row.receipt or 0))
                    audited[row.receipt or 0] = max(audited[row.receipt or 0], known)
            result.add(row for row in await self._find(store, result, window, audited) if row.key in keys)

    async def _find(
        self, store: Store, result: Result, window: FsckWindow | None, audited: Counter[int] | None
    ) -> list[FsckRow]:
        name = result.check.name
        if name == "schema":
            result.examined, rows = await schema_differences(store)
            return rows
        if name == "rejections":  # processes that store samples at the same moment may each store one more
            return await store.fsck.find(name, None, most=2 * MAX_REJECTIONS)
        if window is None:
            return await store.fsck.find(name, None)
        if name == "replays":
            return await _unaudited(store, window, audited, result.unknown)
        if name == "bodies":
            return await self._damaged(store, window, result.unknown)
        return await store.fsck.find(name, window)

    async def _damaged(self, store: Store, window: FsckWindow, unknown: Counter[str]) -> list[FsckRow]:
        rows = []
        for row in await store.fsck.bodies(window):
            problem = await body_problem(store, row, self.fingerprints, unknown)
            if problem is not None:
                rows.append(FsckRow(row.id, row.id, problem))
        return rows

    async def _audited_replays(self, stores: Sequence[Store]) -> Counter[int] | None:
        """Count for each receipt how often the audit logs of all databases name it. None if there are too many."""
        counts: Counter[int] = Counter()
        for member in stores:
            after = 0
            while rows := await member.fsck.audited_replays(after, AUDIT_PAGE):
                after = max(row.id for row in rows)
                counts.update(row.receipt for row in rows)
                if len(counts) > MAX_REPLAYS:
                    return None
        return counts


async def _unaudited(
    store: Store, window: FsckWindow, audited: Counter[int] | None, unknown: Counter[str]
) -> list[FsckRow]:
    replayed = await store.fsck.replayed(window)
    if audited is None:
        unknown["replayed receipts: the audit log has too many"] += len(replayed)
        return []
    return [
        FsckRow(row.receipt, row.receipt, f"replayed {row.number} times, audited {audited[row.receipt]} times")
        for row in replayed
        if row.number > audited[row.receipt]
    ]


def report_json(report: Report, shards: Sequence[str]) -> list[dict[str, Any]]:
    """Return one object for each guarantee."""
    return [
        {
            "invariant": name,
            "promise": invariant.promise,
            "status": report.status(name).replace(" ", "_"),
            "examined": report.examined(name),
            "cannot_be_checked": invariant.limit,
            "unknown": dict(sum((result.unknown for result in report.of(name)), Counter())),
            "problems": [f"{result.check.name}: {result.problem}" for result in report.of(name) if result.problem],
            "violations": [
                {
                    "check": result.check.name,
                    "shard": shards[result.shard],
                    "sentence": result.check.sentence,
                    "remedy": result.check.remedy,
                    "number": result.number,
                    "rows": [{"receipt": row.receipt, "detail": row.detail} for row in result.rows],
                }
                for result in report.of(name)
                if result.number
            ],
        }
        for name, invariant in INVARIANTS.items()
    ]
