"""The faults of processes and of Redis."""

import asyncio
import random
import signal
from contextlib import suppress
from functools import partial

from proof.deliveries.fault import Fault
from proof.deliveries.processes import Slot
from proof.deliveries.world import LEASE_SECONDS, World

HOUR = 3600


async def _restarted(slot: Slot, before: object) -> None:
    while slot.process is before or slot.process is None or (slot.is_server and slot.port is None):
        await asyncio.sleep(0.05)


async def end_process(number: signal.Signals, world: World, chance: random.Random) -> bool:
    slot = chance.choice(world.slots)
    async with slot.is_free:
        before = slot.process
        slot.send(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(_restarted(slot, before), 30)
    return True


async def stop_process(world: World, chance: random.Random) -> bool:
    """Stop a process for longer than its leases, and let it continue."""
    slot = chance.choice(world.slots)
    async with slot.is_free:
        slot.send(signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS * 1.4)
        slot.send(signal.SIGCONT)
    return True


async def take_descriptors(world: World, chance: random.Random) -> bool:
    """Leave a server no file descriptor for a new connection."""
    slot = chance.choice(world.servers)
    async with slot.is_free:
        if slot.port is None:
            return False
        with suppress(OSError):  # the process ends at this moment
            slot.set_descriptors(slot.descriptors)
            await asyncio.sleep(1.0)
            slot.set_descriptors(None)
            return True
    return False


async def skew_clock(world: World, chance: random.Random) -> bool:
    """Set the clock of one worker an hour off, or correct it. On SQLite, all processes share one clock."""
    workers = [slot for slot in world.slots if not slot.is_server]
    chosen = [chance.choice(workers)] if world.is_postgres else world.slots
    offset = chance.choice([offset for offset in (HOUR, -HOUR, 0) if offset != chosen[0].clock_offset])
    if not world.is_postgres:
        world.clock_offset = offset
    for slot in chosen:
        slot.set_clock(offset)
    return True


async def disturb_redis(world: World, chance: random.Random) -> bool:
    """Kill, stop or empty the Redis of the fast path."""
    assert world.redis is not None
    action = chance.choice(("kill", "stop", "flush"))
    if action == "kill":
        world.redis.kill()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(world.redis.start)
    elif action == "stop":
        world.redis.pause()
        await asyncio.sleep(1.0)
        world.redis.resume()
    else:
        await asyncio.to_thread(world.redis.flush)
    return True


PROCESSES = (
    Fault("F1", partial(end_process, signal.SIGKILL)),
    Fault("F2", partial(end_process, signal.SIGTERM)),
    Fault("F3", stop_process),
    Fault("F16", skew_clock, needs="disk"),
    Fault("F20", disturb_redis, needs="redis"),
    Fault("F26", take_descriptors),
)
