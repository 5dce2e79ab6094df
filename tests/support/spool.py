"""Segments of the spool, and claims that fail or hang on command."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import Unavailable
from oncehook.receiver.spool.directory import SUFFIX
from oncehook.receiver.spool.record import read


class ControlledClaims:
    """A claim step whose database is up, down or hangs. It records the events that it claimed, in order."""

    def __init__(self) -> None:
        self.claimed: list[str] = []
        self.failure: Unavailable | None = None
        self.failures: dict[str, Unavailable] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        await self.gate.wait()
        for claim in claims:
            failure = self.failure or self.failures.get(claim.event_id)
            if failure is not None:
                raise failure
        return [self._claim(claim) for claim in claims]

    def _claim(self, claim: Claim) -> Claimed:
        fresh = claim.event_id not in self.claimed
        self.claimed.append(claim.event_id)
        return Claimed(len(self.claimed), fresh, claim.status, claim.fingerprint)


def spooled(folder: Path) -> list[str]:
    """The ids of the events in all segments, in order."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(FileNotFoundError):  # it was claimed in this moment
            found += [claim.event_id for claims in read(path.read_bytes()).deliveries for claim in claims]
    return found
