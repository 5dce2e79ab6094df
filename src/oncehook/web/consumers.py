"""Describes the consumers of the inbox, and pauses and resumes them, for the dashboard and the API."""

import json
from typing import Any

from starlette.requests import Request

from oncehook.model.event import MAIN
from oncehook.model.rows import Pause
from oncehook.web.page import Context, Problem, principal

SETTINGS = ("types", "where", "forward", "rate", "concurrency")
"""The settings of a consumer that are shown. Its secrets are not stored."""


async def named_consumers(context: Context) -> list[str]:
    """The consumers other than `main` that subscribe to a source, have unfinished or failed work, or are paused."""
    snapshot = await context.overview.snapshot()
    subscribed = {row.name for row in context.runtime.consumers.stored}
    return sorted({*subscribed, *snapshot["work"].named_consumers, *snapshot["paused_consumers"]} - {MAIN})


async def list_consumers(context: Context) -> list[dict[str, Any]]:
    """The work and the pause of each consumer, `main` first; empty if `main` is the only one."""
    names = await named_consumers(context)
    return [await _describe_work(context, name) for name in ([MAIN, *names] if names else [])]


async def _describe_work(context: Context, name: str) -> dict[str, Any]:
    snapshot = await context.overview.snapshot()
    paused = _pause(snapshot["paused_consumers"].get(name))
    return {"consumer": name, **snapshot["work"].figures(consumer=name), "paused": paused}


async def describe_consumers(context: Context) -> list[dict[str, Any]]:
    """Every consumer, `main` first: its subscriptions, settings, processes and work."""
    rows = [await _describe_work(context, name) for name in (MAIN, *await named_consumers(context))]
    stored = await context.store.consumers.all()
    live = await context.store.roster.live_handlers()
    described = []
    for row in rows:
        own = [one for one in stored if one.name == row["consumer"]]
        handlers = [one for one in live if one.consumer == row["consumer"]]
        patterns: dict[str, set[str]] = {one.source: set(json.loads(one.patterns)) for one in own}
        for handler in handlers:
            patterns.setdefault(handler.source, set()).add(handler.pattern)
        settings = json.loads(own[0].settings) if own else {}
        described.append(
            {
                **row,
                "sources": {source: sorted(patterns[source]) for source in sorted(patterns)},
                **{name: settings.get(name) for name in SETTINGS},
                "processes": sorted({handler.worker for handler in handlers}),
                "seen_at": max((one.seen_at for one in own), default=None),
            }
        )
    return described


def _pause(row: Pause | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"at": row.paused_at, "actor": row.actor, "reason": row.reason, "until": row.ends_at}


async def set_consumer_paused(
    context: Context, request: Request, *, paused: bool, reason: str | None = None, seconds: float | None = None
) -> str:
    """Pause or resume a consumer and return its name. Raises Problem if there is no such consumer."""
    name: str = request.path_params["consumer"]
    if name not in {MAIN, *await named_consumers(context)}:
        raise Problem(404, "not_found", "Consumer not found.")
    pauses, actor = context.store.pauses, principal(request).name
    if paused:
        await pauses.pause("", actor, consumer=name, reason=reason, seconds=seconds)
    else:
        await pauses.resume("", actor, consumer=name)
    context.overview.invalidate()
    await context.store.wakeups.notify()
    context.runtime.wake_worker()
    return name
