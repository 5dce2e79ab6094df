"""Prunes all data of an inbox: receipts, payloads, keys of effects and email facts."""

from collections.abc import Iterable

from oncehook.config.settings import Horizon, Settings
from oncehook.operations.prune import Progress, Pruned, count_prunable, effect_horizon, prune
from oncehook.store.store import Store


async def prune_all(
    store: Store,
    settings: Settings,
    horizons: Iterable[Horizon],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Pruned | None:
    """Delete data that is past its retention. With `dry_run`, only count it. Returns None if another process prunes."""
    horizons = list(horizons)
    email = None
    if settings.email_retention is not None:
        from oncehook.email import Email  # imported only if email facts are pruned

        email = Email.of(store, settings)
    if dry_run:
        prunable = await count_prunable(store, horizons)
        prunable.email = 0 if email is None else await email.prunable()
        return prunable
    effects = effect_horizon(settings, horizons)
    pruned: Pruned | None = None
    for shard in store.stores:  # each has its own lock to prune; email facts are in the first
        prune_email = email.prune if email is not None and shard is store.stores[0] else None
        done = await prune(shard, horizons, effects=effects, email=prune_email, progress=progress)
        pruned = done if pruned is None else pruned + (done or Pruned())
    return pruned
