"""Checks the key ring against the database, and encrypts all rows with its first key."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from oncehook.config.keyring import WHERE, KeyMissing
from oncehook.model.errors import ConfigurationError
from oncehook.model.nearest import hint
from oncehook.model.rows import RegisteredKey
from oncehook.operations.payload_objects import delete_released
from oncehook.store.encrypted_rows import PARTS
from oncehook.store.store import Store

BATCH = 500
"""Rows per transaction when the values of a lost key are erased."""

MAX_PASSES = 20
"""How often a part is scanned again for rows that were locked, before the rotation reports them."""


@dataclass(slots=True)
class Rotation:
    """What a rotation did."""

    resealed: int = 0
    locked: int = 0  # rows that stayed locked: run the rotation again
    unreadable: Counter[str] = field(default_factory=Counter)  # rows by the key that is missing or wrong
    removable: list[str] = field(default_factory=list)  # keys of the key ring that encrypt no row any more


Progress = Callable[[str, int], None]
"""Called after each page with the part of the database, and the rows that were encrypted so far."""


async def check_keys(store: Store, *, encrypts: bool) -> None:
    """Raise ConfigurationError if a key is missing or wrong that has encrypted rows.

    If this process `encrypts`, its first key is recorded as one that has.
    """
    registered = await store.encrypted_rows.registered()
    for key in registered:
        if key.key_id not in store.keys:
            raise ConfigurationError(
                f"the database has rows that the key {key.key_id} encrypted, and {WHERE} does not have it: add it "
                f"behind the key that encrypts. `oncehook keys list` shows which keys are in use"
            )
    check_proofs(store, registered)
    if encrypts and store.keys.primary not in {key.key_id for key in registered}:
        await store.encrypted_rows.register()


def check_proofs(store: Store, registered: list[RegisteredKey]) -> None:
    """Raise ConfigurationError if the key ring has another key under the id of a key that has encrypted rows."""
    for key in registered:
        if key.key_id in store.keys and not store.encrypted_rows.is_same_key(key):
            raise ConfigurationError(
                f"the key {key.key_id} in {WHERE} is not the one that encrypted the database: correct it, or give the "
                f"new key another id"
            )


async def rotate(store: Store, progress: Progress | None = None, *, actor: str = "oncehook") -> Rotation:
    """Encrypt all rows with the first key of the key ring, and audit `actor`.

    Each page commits, so an interrupted rotation continues where it ended. Processes may run at the same time. Raises
    KeyMissing without a key.
    """
    if not store.keys:
        raise KeyMissing(f"{WHERE} has no key: `oncehook keys generate` prints one, and how to set it", None)
    check_proofs(store, await store.encrypted_rows.registered())
    await store.encrypted_rows.register()
    done = Rotation()
    for part in PARTS:
        await _rotate_part(store, part, done, progress or (lambda part, rows: None))
    used = {use.key_id for use in await store.encrypted_rows.counts()}
    for key in await store.encrypted_rows.registered():
        if key.key_id not in used and key.key_id != store.keys.primary:
            await store.encrypted_rows.unregister(key.key_id)
    if done.resealed:
        await store.operations.audit(actor, "rotate_keys", {"key": store.keys.primary, "rows": done.resealed})
    done.removable = [key_id for key_id in store.keys.key_ids[1:] if key_id not in used]
    return done


async def _rotate_part(store: Store, part: str, done: Rotation, progress: Progress) -> None:
    """Encrypt the rows of a part, and scan it again while rows were locked."""
    for _ in range(MAX_PASSES):
        after, locked, unreadable = None, 0, Counter[str]()
        while True:
            page = await store.encrypted_rows.reseal(part, after)
            done.resealed += page.resealed
            locked += page.locked
            unreadable += page.unreadable
            progress(part, done.resealed)
            after = page.next
            if after is None:
                break
        if not locked:
            break
    done.locked += locked
    done.unreadable += unreadable


@dataclass(slots=True)
class Abandoned:
    """What was erased with a lost key."""

    payloads: int = 0
    texts: int = 0  # rows with error texts or arguments
    secrets: int = 0  # managed sources and tenants whose secrets it sealed; they stay until they are removed


async def abandon(store: Store, key_id: str, *, actor: str) -> Abandoned:
    """Erase all payloads, error texts and arguments that a lost key has encrypted, so that an inbox starts without it.

    The receipts stay. An event that is not finished becomes a dead letter. Raises ConfigurationError if the key ring
    has the key, or if no row names it.
    """
    if key_id in store.keys:
        raise ConfigurationError(f"the key {key_id} is in {WHERE}: `oncehook keys rotate` replaces it, nothing is lost")
    await _check_used(store, key_id)
    done = Abandoned()
    while receipts := await store.encrypted_rows.payloads_of(key_id, BATCH):
        detail = json.dumps({"key": key_id, "receipts": receipts})
        erased = await store.retention.erase(receipts, None, actor, detail)
        done.payloads += erased
        if not erased:  # another command erased them at the same time
            break
    while erased := await store.encrypted_rows.erase_texts(key_id, BATCH):
        done.texts += erased
    await store.operations.audit(actor, "abandon_key", {"key": key_id})
    left = [use for use in await store.encrypted_rows.counts() if use.key_id == key_id]
    done.secrets = sum(use.number for use in left if use.table in ("webhook_sources", "webhook_tenants"))
    await store.encrypted_rows.unregister(key_id)
    for shard in store.stores:
        await delete_released(shard)
    return done


async def _check_used(store: Store, key_id: str) -> None:
    registered = {key.key_id for key in await store.encrypted_rows.registered()}
    used = registered | {use.key_id for use in await store.encrypted_rows.counts()}
    if key_id not in used:
        known = hint(key_id, used.difference(store.keys.key_ids), "missing keys")
        raise ConfigurationError(f"no row names the key {key_id}: {known}")
