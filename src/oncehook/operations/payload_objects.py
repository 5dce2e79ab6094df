"""Deletes payload objects that no payload needs.

A store that does not answer delays nothing: the rows of its objects stay, and the next run deletes them.
"""

from oncehook.observability import signals
from oncehook.store.store import Store

UNUSED_SECONDS = 86400.0
"""Seconds after which an object that no claim took is deleted. A claim ends within seconds, or its sender gets 503."""

BATCH = 200
"""Objects per query."""


async def collect_objects(store: Store, *, unused: float = UNUSED_SECONDS) -> int:
    """Delete released objects, and those that no claim took within `unused` seconds. Returns how many."""
    while await store.payload_objects.release_unused(unused, BATCH) == BATCH:
        pass
    return await delete_released(store)


async def delete_released(store: Store) -> int:
    """Delete the objects that were released, and then their rows. Returns how many."""
    after, total, failed = "", 0, 0
    while page := await store.payload_objects.released(after, BATCH):
        after = page[-1]
        deleted = await store.objects.delete(page)
        failed += len(page) - len(deleted)
        if deleted:
            total += await store.payload_objects.delete(deleted)
    if failed:
        signals.emit("payload_objects_not_deleted", count=failed)
    return total
