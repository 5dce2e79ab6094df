"""The rows of payload objects, which say for every object whether a payload needs it.

An object goes through these steps, and a process may die between any two of them:

1. `reserve` commits its row.
2. The object is written.
3. The claim takes it, in the transaction that records the event.
4. The transaction that deletes the payload releases it.
5. The object is deleted.
6. `delete` deletes its row.

An object that no claim took within a day is released too. A claim cannot take a released object, so an object is never
deleted while a claim is about to need it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from oncehook.model.claim import Claim
from oncehook.store.executor import Executor


@dataclass(frozen=True, slots=True)
class ObjectCounts:
    """How many objects there are, their size in bytes, and how many of them wait for their deletion."""

    number: int
    size: int
    released: int


class SqlPayloadObjectStore:
    """The rows of payload objects, on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def reserve(self, objects: Sequence[tuple[str, Claim]]) -> set[str]:
        """Commit the rows of objects before they are written, and return their addresses.

        Events that are recorded already are left out: their deliveries are duplicates.
        """
        rows = [
            {
                "address": address,
                "size": len(claim.body),
                "source": claim.source,
                "tenant": claim.tenant,
                "event_id": claim.event_id,
            }
            for address, claim in objects
        ]
        reserved = await self._executor.write("reserve_objects", {"objects": json.dumps(rows)})
        return {row["address"] for row in reserved}

    async def release_unused(self, seconds: float, limit: int) -> int:
        """Release objects that no claim took within `seconds` since they were reserved. Returns how many."""
        parameters = {"seconds": seconds, "limit": limit}
        return len(await self._executor.write("release_unused_objects", parameters))

    async def released(self, after: str, limit: int) -> list[str]:
        """Return the addresses of objects that no payload needs, in order."""
        rows = await self._executor.read("released_objects", {"after": after, "limit": limit})
        return [row["address"] for row in rows]

    async def delete(self, addresses: Sequence[str]) -> int:
        """Delete the rows of released objects, which are deleted from their store. Returns how many."""
        return len(await self._executor.write("delete_objects", {"addresses": json.dumps(list(addresses))}))

    async def counts(self) -> ObjectCounts:
        """Count the objects."""
        row = (await self._executor.scan("object_counts"))[0]
        return ObjectCounts(row["number"], row["size"], row["released"])
