"""Samples of rejected requests, and the number of deliveries that each secret has verified."""

from collections.abc import Mapping
from dataclasses import asdict

from oncehook.model.delivery import Rejection
from oncehook.model.rows import SecretUse, StoredRejection
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import MAX_REJECTIONS


class SqlRejectionStore:
    """Implements `RejectionStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def keep(self, rejection: Rejection) -> None:
        parameters = asdict(rejection) | {"limit": MAX_REJECTIONS}

        async def work(run: Run) -> None:
            await run("keep_rejection", parameters)
            await run("trim_rejections", parameters)

        await self._executor.transaction(work)

    async def find(self, source: str | None = None, *, limit: int = 20) -> list[StoredRejection]:
        parameters = {"limit": limit} | ({} if source is None else {"source": source})
        return decode(await self._executor.read("rejections", parameters), StoredRejection)

    async def note_secrets(self, used: Mapping[tuple[str, str], int]) -> None:
        async def work(run: Run) -> None:
            for (source, secret), count in sorted(used.items()):
                await run("note_secret", {"source": source, "secret": secret, "verified": count})

        await self._executor.transaction(work)

    async def secrets_used(self) -> list[SecretUse]:
        return decode(await self._executor.read("secrets_used"), SecretUse)
