"""Queries about email and entities, and the transactions of changes by operators."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncehook.store.decode import decode
from oncehook.store.executor import Executor
from oncehook.store.transaction import Transaction

T = TypeVar("T")


class SqlEmailStore:
    """Implements `EmailStore` on every database."""

    def __init__(self, executor: Executor, begin: Callable[[], Transaction]) -> None:
        self._executor = executor
        self._begin = begin

    async def query(self, name: str, parameters: Any, kind: type[T]) -> list[T]:
        return decode(await self._executor.read(name, {"input": json.dumps(parameters)}), kind)

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        transaction = self._begin()
        try:
            result = await work(transaction)
            if transaction.used:
                await transaction.settle([])
        except BaseException as error:
            await asyncio.shield(transaction.rollback())
            unavailable = self._executor.as_unavailable(error)
            if unavailable is not None:
                raise unavailable from error
            raise
        return result
