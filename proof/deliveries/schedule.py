"""The order of the faults, from the seed: rounds in which each fault of a lane is applied once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from proof.deliveries.database_faults import DATABASES
from proof.deliveries.fault import Fault
from proof.deliveries.process_faults import PROCESSES
from proof.deliveries.senders import Traffic

LANES = (PROCESSES, DATABASES)
"""One fault of each lane is active at a time."""

GAPS = 36
"""Between two faults of a lane, a share of all deliveries is acked, so that a run has about this many of them."""

SMALLEST_GAP = 60
MISSES = 5
LONGEST_GAP_SECONDS = 10.0


class Schedule:
    """Applies faults until everything is delivered and each fault had an effect `times` times.

    A fault that repeatedly has no effect is given up after some more tries.
    """

    def __init__(self, traffic: Traffic, kinds: frozenset[str], times: int, say: Callable[[str], None]) -> None:
        self.traffic, self.times, self.say = traffic, times, say
        self.lanes = [[fault for fault in lane if fault.kind in kinds and fault.fits(traffic.world)] for lane in LANES]
        self.applied: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()

    def is_incomplete(self) -> bool:
        return any(self.applied[fault.kind] < self.times for lane in self.lanes for fault in lane)

    async def run(self) -> None:
        self.traffic.needed = self.is_incomplete
        await asyncio.gather(*(self._run_lane(number, lane) for number, lane in enumerate(self.lanes) if lane))

    async def _run_lane(self, number: int, lane: Sequence[Fault]) -> None:
        chance = random.Random(f"{self.traffic.plan.seed}/lane/{number}")
        while True:
            for fault in chance.sample(lane, len(lane)):
                await self._until_more(chance)
                if self.traffic.is_over and self._has_tried(lane):
                    return
                self.tried[fault.kind] += 1
                began = time.monotonic()
                had_effect = await fault.apply(self.traffic.world, chance)
                self.applied[fault.kind] += had_effect
                self.say(f"{fault.kind} for {time.monotonic() - began:.1f} s{'' if had_effect else ', without effect'}")

    def _has_tried(self, lane: Sequence[Fault]) -> bool:
        """Whether each fault was applied often enough, or had no effect each time: without traffic it may have none."""
        most = self.times + MISSES
        return all(self.applied[fault.kind] >= self.times or self.tried[fault.kind] >= most for fault in lane)

    async def _until_more(self, chance: random.Random) -> None:
        share = max(SMALLEST_GAP, len(self.traffic.plan.deliveries) / max(GAPS, self.times))
        goal = self.traffic.done + share * chance.uniform(0.2, 1.2)
        deadline = time.monotonic() + LONGEST_GAP_SECONDS
        while self.traffic.done < goal and not self.traffic.is_over and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
