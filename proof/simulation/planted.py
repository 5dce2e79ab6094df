"""Known mistakes, planted in this Python process only, to show that the simulation finds them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from oncehook.effects.relay import Relay
from oncehook.model.claim import Claim, Claimed
from oncehook.model.effect import EffectState, SettledEffect
from oncehook.receiver.claim import Claimer
from oncehook.runtime.consumers import Consumers
from oncehook.store import queries

Plant = Callable[[], Any]


def _statement(name: str, old: str, new: str) -> Any:
    """Change a statement of the store."""
    statements = queries.load("sqlite")
    assert old in statements[name], f"the statement {name} has changed: adapt the planted bug"
    return patch.dict(statements, {name: statements[name].replace(old, new)})


def unfenced_settle() -> Any:
    """A worker whose lease expired ends the attempt of another."""
    return _statement("settle", "AND webhook_receipts.lease = g.lease ", "")


def attempt_at_failure() -> Any:
    """An attempt is counted only if it fails, so an event that kills its process is retried forever."""
    return _statement("lease", "attempts = attempts + 1", "attempts = attempts + (crashes < 0)")


def prune_inside_window() -> Any:
    """The pruner deletes events of which the provider may still send duplicates."""
    return _statement("old_receipts", "AND r.received_at < h.value ->> 'before' AND r.received_at < :latest", "")


def ack_before_commit() -> Any:
    """The sender gets its 2xx while the claim is still being written."""
    original = Claimer.claim

    async def claim(self: Claimer, claims: Sequence[Claim]) -> list[Claimed]:
        task = asyncio.get_running_loop().create_task(original(self, claims))
        task.add_done_callback(lambda done: done.exception())
        return [Claimed(1, True, claim.status, claim.fingerprint) for claim in claims]

    return patch.object(Claimer, "claim", claim)


def mark_before_call() -> Any:
    """An effect is settled as done before its target is called."""
    original = Relay._run

    async def run(self: Relay, leased: Any) -> None:
        await self.settler.settle(SettledEffect(leased.id, leased.lease, EffectState.DONE))
        await original(self, leased)

    return patch.object(Relay, "_run", run)


def stale_subscriptions() -> Any:
    """A process that starts while another registers the same consumer does not read the registration.

    The simulation found this one in the real code.
    """

    async def register(self: Consumers, *, starting: bool = False) -> bool:
        patterns = self.patterns
        definition = patterns, {name: self._stored(name) for name, _ in patterns}
        overwrite = starting or definition != self._registered
        changed = bool(patterns) and await self.store.consumers.register(*definition, overwrite=overwrite)
        if changed:
            await self.load()
        self._registered = definition
        return changed

    return patch.object(Consumers, "register", register)


PLANTS: dict[str, Plant] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        unfenced_settle,
        attempt_at_failure,
        prune_inside_window,
        ack_before_commit,
        mark_before_call,
        stale_subscriptions,
    )
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug for the block, or none."""
    if name is None:
        yield
        return
    queries.statement.cache_clear()
    try:
        with PLANTS[name]():
            yield
    finally:
        queries.statement.cache_clear()
