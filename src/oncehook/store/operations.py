"""Operations of people: replays, retries, and the audit log."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncehook.model.receipt import Receipt
from oncehook.model.rows import AuditedRun, AuditEntry, ReplayEntry, SelectedCount, Time
from oncehook.store.decode import decode
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor, Run
from oncehook.store.receipts import filter_parameters
from oncehook.store.rows import Selection

NO_LIMIT = 2**62


class SqlOperationStore:
    """Implements `OperationStore` on every database."""

    def __init__(self, executor: Executor, encryption: Encryption) -> None:
        self._executor = executor
        self._encryption = encryption
        self._dialect = executor.dialect

    async def now(self) -> datetime:
        return decode(await self._executor.read("replay_now"), Time)[0].now

    async def select(self, selection: Selection, *, after: int, limit: int) -> list[tuple[Receipt, bool]]:
        parameters = self._parameters(selection) | {"after": after, "limit": limit}
        rows = await self._executor.scan("replay_page", parameters)
        receipts = self._encryption.open_receipts(decode(rows, Receipt))
        return [(receipt, bool(row["has_payload"])) for receipt, row in zip(receipts, rows, strict=True)]

    async def count(self, selection: Selection) -> list[SelectedCount]:
        parameters = self._parameters(selection) | {"after": selection.after, "limit": NO_LIMIT}
        return decode(await self._executor.scan("replay_counts", parameters), SelectedCount)

    async def replay(
        self, receipts: Sequence[int], actor: str, detail: dict[str, Any], *, action: str = "replay"
    ) -> list[int]:
        return await self._move(self._dialect.replay, receipts, actor, action, detail)

    async def retry_now(self, receipts: Sequence[int], actor: str, detail: dict[str, Any]) -> list[int]:
        return await self._move(("retry_now",), receipts, actor, "retry", detail)

    async def _move(
        self, statements: Sequence[str], receipts: Sequence[int], actor: str, action: str, detail: dict[str, Any]
    ) -> list[int]:
        """Run the statements, and audit the actor. The last statement returns the receipts that were changed."""
        parameters = {"receipts": self._dialect.array(receipts)}

        async def work(run: Run) -> list[int]:
            for name in statements[:-1]:
                await run(name, parameters)
            moved = sorted(row[0] for row in await run(statements[-1], parameters))
            if moved:
                recorded = json.dumps({**detail, "count": len(moved), "receipts": moved})
                await run("audit", {"actor": actor, "action": action, "detail": recorded})
            return moved

        return await self._executor.transaction(work)

    async def replays(self, receipt: int) -> list[ReplayEntry]:
        return decode(await self._executor.scan("receipt_replays", {"receipt": receipt}), ReplayEntry)

    async def run_outcomes(self, run: str) -> dict[str, int]:
        return {row["status"]: row["receipts"] for row in await self._executor.scan("run_outcomes", {"run": run})}

    async def audit(self, actor: str, action: str, detail: dict[str, Any]) -> None:
        await self._executor.write("audit", {"actor": actor, "action": action, "detail": json.dumps(detail)})

    async def audited(self, *, before: int | None, limit: int) -> list[AuditEntry]:
        parameters = {"limit": limit} | ({} if before is None else {"before": before})
        rows = await self._executor.read("audit_entries", parameters)
        return decode([{**dict(row), "detail": json.loads(row["detail"])} for row in rows], AuditEntry)

    async def audited_run(self, run: str) -> list[AuditedRun]:
        return decode(await self._executor.read("run_entries", {"run": run}), AuditedRun)

    def _parameters(self, selection: Selection) -> dict[str, Any]:
        parameters = filter_parameters(self._dialect, selection.filter)
        if selection.receipts is not None:
            parameters["receipts"] = self._dialect.array(selection.receipts)
        if selection.handled_by is not None:
            parameters["handled_by"] = selection.handled_by
        if selection.horizon is not None:
            parameters["horizon"] = self._dialect.time(selection.horizon)
        return parameters
