"""The state that decides whether a remembered receipt is still in the database: its identity, and the deletions."""

import hashlib
import secrets

import msgspec

from oncehook.model.errors import StoreUnavailable
from oncehook.store.decode import decode
from oncehook.store.executor import Executor
from oncehook.store.identity import EPOCH_BITS, READ_ONLY


class FastPathRow(msgspec.Struct, frozen=True):
    """The row of `webhook_fast_path`, and the identity of the database with its synchronous standbys."""

    identity: str
    secret: str
    deleted_up_to: int
    receipts: int


class FastPathState(msgspec.Struct, frozen=True):
    """What the database said at one moment."""

    secret: bytes
    """Signs the entries of a shared cache. Only processes of this database know it."""

    namespace: bytes
    """A hash of the identity: another after a failover, a restart or a restored backup. An entry is of one of them."""

    deleted_up_to: int
    """No receipt with a greater number was ever deleted in this namespace."""

    receipts: int = 2**63 - 1
    """The last receipt number that was drawn. A greater one that a process remembers is of a history that is gone."""


class SqlFastPathStore:
    """The state of the fast path, on every database. Deleting receipts changes it by a trigger."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def state(self) -> FastPathState:
        """Query the state. It includes every deletion that was committed before this call. Raises StoreUnavailable."""
        rows = decode(await self._executor.read("fast_path_state"), FastPathRow)
        if not rows:
            raise StoreUnavailable(READ_ONLY)
        secret = hashlib.blake2b(rows[0].secret.encode()).digest()
        namespace = hashlib.blake2b(rows[0].identity.encode(), key=secret, digest_size=16).digest()
        return FastPathState(secret, namespace, rows[0].deleted_up_to, rows[0].receipts)

    async def renew(self) -> None:
        """Give the database another namespace, because it was set back under the same name. Raises StoreUnavailable."""
        await self._executor.write("renew_identity", {"epoch": secrets.randbits(EPOCH_BITS)})
