"""Extends leases on PostgreSQL."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from oncehook.model.errors import StoreUnavailable
from oncehook.model.lease import LeaseKey
from oncehook.store import queries
from oncehook.store.leases import lease_keys_json
from oncehook.store.postgres.pool import CONNECTION_LOST, PostgresPool


class PostgresHeartbeatConnection:
    """Implements `HeartbeatConnection` with a dedicated connection and event loop."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def extend(self, keys: Sequence[LeaseKey], seconds: float) -> None:
        self._send("extend", {"seconds": seconds, "held": lease_keys_json(keys)}, seconds)

    def release(self, keys: Sequence[LeaseKey]) -> None:
        self._send("release", {"held": lease_keys_json(keys), "after": None}, self._pool.settings.claim_timeout)

    def _send(self, name: str, parameters: dict[str, Any], seconds: float) -> None:
        try:
            self._loop.run_until_complete(self._execute(name, parameters, seconds))
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            self._drop()
            raise StoreUnavailable(f"the heartbeat failed: {type(error).__name__}") from error
        except BaseException:
            self._drop()  # the state of the connection is unknown
            raise

    async def _execute(self, name: str, parameters: dict[str, Any], seconds: float) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._pool.connect("oncehook heartbeat", seconds)
        text, names = queries.number_parameters(self._pool.sql[name])
        await self._connection.execute(text, *(parameters[key] for key in names))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # the loop closes the socket in its next iteration

    def close(self) -> None:
        self._drop()
        self._loop.close()
