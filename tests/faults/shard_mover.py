"""A process that moves a source to another shard, and kills itself at a step of the move.

python -m tests.faults.shard_mover CONFIG SOURCE TO [STEP]
"""

import asyncio
import os
import signal
import sys
from typing import Any

from oncehook.config.configuration import load
from oncehook.operations.move_plan import plan_move
from oncehook.operations.move_source import Moved, SourceMove
from oncehook.store.federation import FederatedStore
from oncehook.store.opening import opened_shards


async def die(*args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(config: str, source: str, to: str, step: str = "") -> None:
    configuration = load(config, {})
    async with opened_shards(configuration.settings, configuration.shards) as store:
        assert isinstance(store, FederatedStore)
        plan = await plan_move(store.members, store.routes, source, to)
        move = SourceMove(store.members, source, plan, actor="test")

        def report(done: Moved) -> None:
            if done.phase == step:
                os.kill(os.getpid(), signal.SIGKILL)

        move._progress = report
        if step == "left":
            move._open = die  # type: ignore[method-assign]
        elif step == "opened":
            move.main.put_route = die  # type: ignore[assignment, method-assign]
        print((await move.run()).frozen_seconds)


asyncio.run(main(*sys.argv[1:]))
