"""Pruning everything that an inbox keeps: receipts, payloads, the keys of effects and email facts."""

from collections.abc import Iterable

from oncehook.config.settings import Horizon, Settings
from oncehook.operations.prune import Progress, Pruned, count_prunable, effect_horizon, prune, prune_email
from oncehook.store.store import Store


async def prune_all(
    store: Store,
    settings: Settings,
    horizons: Iterable[Horizon],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Pruned | None:
    """Remove what is past its retention, or count it. Returns None if another process is pruning."""
    horizons = list(horizons)
    email = None
    if settings.email_retention is not None:
        from oncehook.email import Email  # only where its facts may go

        email = Email.of(store, settings)
    if dry_run:
        would = await count_prunable(store, horizons)
        would.email = 0 if email is None else await email.prunable()
        return would
    done = await prune(store, horizons, effects=effect_horizon(settings, horizons), progress=progress)
    if done is not None and email is not None:
        done.email = await prune_email(email.prune)
    return done
