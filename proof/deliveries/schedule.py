"""The order of the faults, from the seed: rounds in which each fault of a lane is applied once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from proof.deliveries.faults import LANES, Fault
from proof.deliveries.world import World


class Schedule:
    """Applies faults until it is told to stop, and at least until each has had an effect."""

    def __init__(self, world: World, kinds: frozenset[str], seed: int, say: Callable[[str], None]) -> None:
        self.world, self.seed, self.say = world, seed, say
        self.lanes = [[fault for fault in lane if fault.kind in kinds and fault.fits(world)] for lane in LANES]
        self.applied: Counter[str] = Counter()
        self.is_over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._run_lane(number, lane) for number, lane in enumerate(self.lanes) if lane))

    async def _run_lane(self, number: int, lane: Sequence[Fault]) -> None:
        chance = random.Random(f"{self.seed}/lane/{number}")
        while True:
            for fault in chance.sample(lane, len(lane)):
                if self.is_over and all(self.applied[each.kind] for each in lane):
                    return
                await asyncio.sleep(chance.uniform(0.1, 0.6))
                began = time.monotonic()
                had_effect = await fault.apply(self.world, chance)
                self.applied[fault.kind] += had_effect
                self.say(f"{fault.kind} for {time.monotonic() - began:.1f} s{'' if had_effect else ', without effect'}")
