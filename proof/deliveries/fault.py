"""A fault that a run can apply."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proof.deliveries.world import World

Apply = Callable[[World, random.Random], Awaitable[bool]]
"""Applies a fault and heals it. Returns whether it had an effect."""


@dataclass(frozen=True)
class Fault:
    """A fault that a run can apply on these kinds of databases."""

    kind: str
    apply: Apply
    postgres: bool = True
    sqlite: bool = True
    needs: str | None = None
    """The attribute of `World` that the fault acts on. Without it, the run leaves the fault out."""

    def fits(self, world: World) -> bool:
        is_there = self.needs is None or getattr(world, self.needs) is not None
        return is_there and (self.postgres if world.is_postgres else self.sqlite)
