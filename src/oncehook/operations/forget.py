"""Erases the payloads of receipts that are about an object or mention an email address, or everything of a tenant.

The receipts stay, so events that are delivered again are still duplicates.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import quote

from oncehook.model.rows import StoredBody
from oncehook.objects.reference import ObjectMissing
from oncehook.operations.payload_objects import delete_released
from oncehook.store.store import Store

PAGE = 100
"""Payloads per query of a search."""

BATCH = 500
"""Receipts per transaction."""


async def find_mentions(store: Store, address: str) -> AsyncIterator[tuple[int, bool]]:
    """Yield every receipt that has a payload, and whether the payload or its headers mention the address.

    Raises KeyRingError if a payload cannot be decrypted: the search would not be complete.
    """
    after = 0
    while page := await store.retention.payloads(after, PAGE):
        for row in page:
            body, headers = await _read(store, row)
            yield row.receipt_id, mentions(body, address) or mentions(headers.encode(), address)
        after = page[-1].receipt_id


async def _read(store: Store, row: StoredBody) -> tuple[bytes, str]:
    try:
        return await store.bodies.read(row, row.body, row.headers, row.object)
    except ObjectMissing:  # there is nothing to erase but the headers
        return store.encryption.decrypt_headers(row, row.headers)


def mentions(body: bytes, address: str) -> bool:
    """Return whether a body contains an address, in any case and as JSON or a form encodes it."""
    plain = address.lower()
    spellings = {plain, quote(plain, safe="").lower(), plain.replace("@", "\\u0040"), json.dumps(plain)[1:-1].lower()}
    text = body.decode("utf-8", "replace").lower()
    return any(spelling in text for spelling in spellings)


async def forget(store: Store, receipts: Sequence[int], *, actor: str, object_id: str = "", address: str = "") -> int:
    """Erase the payloads of `receipts`, and return how many there were.

    The audit log records only a hash of an address: the record of an erasure must not keep the erased data.
    """
    subject = {"object": object_id}
    if address:
        subject = {"address": f"sha256:{hashlib.sha256(address.lower().encode()).hexdigest()}"}
    erased = 0
    for start in range(0, len(receipts), BATCH):
        batch = list(receipts[start : start + BATCH])
        detail = json.dumps({**subject, "receipts": batch})
        erased += await store.retention.erase(batch, address.lower() or None, actor, detail)
    for shard in store.stores:
        await delete_released(shard)
    return erased


async def forget_tenant(
    store: Store, source: str, tenant: str, *, actor: str, progress: Callable[[int], None] | None = None
) -> int:
    """Erase a tenant, and return how many payloads there were. If it is interrupted, run it again.

    Of its events, only the ids, types, times and states stay. Its effects, entities and rejection samples are deleted.
    """
    erased, after = 0, None
    for shard in store.stores:
        while True:
            number, after = await shard.retention.erase_tenant(source, tenant, actor, after=after, limit=BATCH)
            erased += number
            if progress is not None:
                progress(erased)
            if after is None:
                await shard.retention.erase_tenant_state(source, tenant, actor)
                await delete_released(shard)
                break
    return erased
