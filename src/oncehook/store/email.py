"""The statements about email and entities, read or run in a transaction of their own."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncehook.store.decode import decode
from oncehook.store.executor import Executor
from oncehook.store.transaction import Transaction

T = TypeVar("T")


class Email:
    """Implements `EmailStore` on every database."""

    def __init__(self, executor: Executor, begin: Callable[[], Transaction]) -> None:
        self._executor = executor
        self._begin = begin

    async def query(self, name: str, given: Any, kind: type[T]) -> list[T]:
        return decode(await self._executor.read(name, {"given": json.dumps(given)}), kind)

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        transaction = self._begin()
        try:
            done = await work(transaction)
            if transaction.used:
                await transaction.settle([])
        except BaseException as error:
            await asyncio.shield(transaction.rollback())
            unavailable = self._executor.unavailable(error)
            if unavailable is not None:
                raise unavailable from error
            raise
        return done
