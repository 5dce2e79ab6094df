"""The rows that the key ring has encrypted: which keys are in use, and their encryption with the first key again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncehook.config.keyring import PREFIX, KeyRing, KeyRingError, KeyWrong
from oncehook.config.managed_secrets import source_context, tenant_context
from oncehook.model.errors import StoreUnavailable
from oncehook.model.rows import KeyUse, RegisteredKey
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.store.decode import decode
from oncehook.store.encryption import SEALED, args_context, error_context, payload_context
from oncehook.store.executor import Executor, Run
from oncehook.store.rows import ResealedPage

PAGE = 50
"""Rows per transaction. A payload may have a megabyte."""

TEXTS: dict[str, tuple[str, ...]] = {
    "receipts": ("last_error",),
    "attempts": ("error", "traceback"),
    "effects": ("args", "last_error"),
}
"""The columns with sealed texts of each part, apart from the payloads and the managed secrets."""

STATEMENTS: dict[str, tuple[str, str | None, str]] = {
    "payloads": ("payloads_to_reseal", "lock_payloads", "reseal_payloads"),
    "receipts": ("receipts_to_reseal", "lock_receipts", "reseal_receipts"),
    "attempts": ("attempts_to_reseal", "lock_attempts", "reseal_attempts"),
    "effects": ("effects_to_reseal", "lock_effects", "reseal_effects"),
    "sources": ("sources_to_reseal", None, "reseal_sources"),
    "tenants": ("tenants_to_reseal", None, "reseal_tenants"),
}
"""The statements of each part: they find its rows, lock them, and write one."""

PARTS = tuple(STATEMENTS)
"""The parts of the database that the key ring encrypts. Each is encrypted again in pages."""


class SqlEncryptedRowStore:
    """Implements `EncryptedRowStore` on every database."""

    def __init__(self, executor: Executor, keys: Callable[[], KeyRing], objects: PayloadObjects) -> None:
        self._executor = executor
        self._keys = keys
        self._objects = objects

    async def registered(self) -> list[RegisteredKey]:
        return decode(await self._executor.read("encryption_keys"), RegisteredKey)

    async def register(self) -> None:
        ring = self._keys()
        key_id = ring.primary
        assert key_id is not None, "an empty key ring encrypts nothing"
        await self._executor.write("register_key", {"key_id": key_id, "proof": ring.seal("oncehook", _proof(key_id))})

    async def unregister(self, key_id: str) -> None:
        await self._executor.write("unregister_key", {"key_id": key_id})

    def is_same_key(self, key: RegisteredKey) -> bool:
        try:
            return self._keys().open(key.proof, _proof(key.key_id)) == "oncehook"
        except KeyWrong:
            return False

    async def counts(self) -> list[KeyUse]:
        return decode(await self._executor.scan("encrypted_counts", {"sealed": PREFIX}), KeyUse)

    async def reseal(self, part: str, after: Any = None) -> ResealedPage:
        ring = self._keys()
        source, tenant = after if part == "tenants" and after else ("", "")
        parameters = {
            "after": after or 0,
            "source": source,
            "tenant": tenant,
            "limit": PAGE,
            "key_id": ring.primary,
            "sealed": PREFIX,
            "current": f"{PREFIX}{ring.primary}:",
        }
        rows = [dict(row) for row in await self._executor.scan(STATEMENTS[part][0], parameters)]
        page = ResealedPage(_position(part, rows[-1]) if len(rows) == PAGE else None)
        changes = []
        for row in rows:
            try:
                changes.append({**row, **await self._change(ring, part, row)})
            except KeyRingError as error:
                page.unreadable[error.key_id or "?"] += 1
        page.resealed = await self._write(part, changes) if changes else 0
        page.locked = len(changes) - page.resealed
        return page

    async def _change(self, ring: KeyRing, part: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return the new values of a row. A body in the payload store is written to a new object."""
        if part != "payloads" or row["object"] is None:
            return _changed(ring, part, row)
        try:
            changed = _changed(ring, part, {**row, "body": await self._objects.get(row["object"])})
            address = self._objects.address(changed["body"])
            await self._executor.write("reserve_object", {"address": address, "size": len(changed["body"])})
            await self._objects.write(address, changed["body"])
        except ObjectMissing:  # its body is lost, and its headers stay readable
            context = payload_context(_Event(row["source"], row["tenant"], row["event_id"]))
            return {"key_id": ring.primary, **_resealed(ring, row, {"headers": context})}
        except ObjectStoreUnavailable as error:
            raise StoreUnavailable(f"the payload store: {error}") from error
        return {**changed, "body": b"", "object": address, "old_object": row["object"]}

    async def payloads_of(self, key_id: str, limit: int) -> list[int]:
        return [row[0] for row in await self._executor.scan("payloads_of_key", {"key_id": key_id, "limit": limit})]

    async def erase_texts(self, key_id: str, limit: int) -> int:
        parameters = {"current": f"{PREFIX}{key_id}:", "limit": limit}
        statements = ("erase_receipts_of_key", "erase_attempts_of_key", "erase_effects_of_key")
        return sum([len(await self._executor.write(name, parameters)) for name in statements])

    async def _write(self, part: str, changes: Sequence[Mapping[str, Any]]) -> int:
        """Write rows that did not change since they were read. Rows that are locked are skipped: it never waits."""

        _, lock, write = STATEMENTS[part]

        async def work(run: Run) -> int:
            writable = changes
            if lock is not None:
                ids = self._executor.dialect.array(change["id"] for change in changes)
                held = {row["id"] for row in await run(lock, {"ids": ids})}
                writable = [change for change in changes if change["id"] in held]
            return sum([await _write_row(run, write, change) for change in writable])

        return await self._executor.transaction(work)


async def _write_row(run: Run, write: str, change: Mapping[str, Any]) -> int:
    """Write a row that did not change since it was read. Returns 0 if it did."""
    if not await run(write, change):
        return 0
    if "old_object" in change:
        if not await run("take_object", change):
            raise StoreUnavailable("the new payload object was released: the rotation waited for too long")
        await run("release_object", change)
    return 1


def _position(part: str, row: Mapping[str, Any]) -> Any:
    if part == "tenants":
        return row["source"], row["tenant"]
    return row["id"] if part != "sources" else None


def _changed(ring: KeyRing, part: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new values of a row, and the old ones, which must still be stored. Raises KeyRingError."""
    if part == "payloads":
        context = payload_context(_Event(row["source"], row["tenant"], row["event_id"]))
        key_id, body = ring.encrypt(ring.decrypt(row["key_id"], row["body"], context), context)
        return {"body": body, "key_id": key_id, **_resealed(ring, row, {"headers": context})}
    if part == "sources":
        return _resealed(ring, row, {"secrets": source_context(row["name"])})
    if part == "tenants":
        return _resealed(ring, row, {"secrets": tenant_context(row["source"], row["tenant"])})
    contexts = dict.fromkeys(TEXTS[part], error_context(row["source"]))
    if part == "effects":
        contexts["args"] = args_context(row["scope"], row["key"])
    return _resealed(ring, row, contexts)


def _resealed(ring: KeyRing, row: Mapping[str, Any], contexts: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, context in contexts.items():
        text = values[f"old_{name}"] = row[name]
        values[name] = None if text is None else _reseal(ring, text, context)
    return values


def _reseal(ring: KeyRing, text: str, context: str) -> str:
    """Seal the sealed parts of a text with the first key."""
    return SEALED.sub(lambda part: ring.seal(ring.open(part.group(), context), context), text)


def _proof(key_id: str) -> str:
    return f"key {key_id}"


@dataclass(frozen=True, slots=True)
class _Event:
    source: str
    tenant: str
    event_id: str
