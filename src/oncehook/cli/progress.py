"""Progress on standard error: a bar and the outcomes of a replay, and a status line for other commands."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from oncehook.operations.replay import BATCH, Outcomes, Progress, Replayed, run_outcomes
from oncehook.store.store import Store

POLL_INTERVAL = 0.5
"""Seconds between two queries for the outcomes."""


@contextmanager
def replay_bar(planned: Replayed, rate: float | None) -> Iterator[Progress]:
    """A progress bar, if standard error is a terminal and the replay takes more than one batch."""
    with _bar("replaying", planned.matched, planned.matched > BATCH or rate is not None) as advance:
        yield lambda done: advance(done.matched, "")


async def wait_until_handled(store: Store, done: Replayed, max_seconds: float | None) -> Outcomes:
    """Wait until every replayed receipt is handled or has failed again, for up to `max_seconds`."""
    now = Outcomes()
    with _bar("handling", done.count, True) as advance:
        try:
            async with asyncio.timeout(max_seconds):
                while True:
                    now = await run_outcomes(store, done.run or "")
                    advance(now.handled + now.failed, outcomes_text(now))
                    if not now.waiting:
                        return now
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            return now
        except asyncio.CancelledError:
            click.echo(f"\nstopped waiting: {outcomes_text(now)}. The workers continue", err=True)
            raise


def outcomes_text(now: Outcomes) -> str:
    """5,390 handled, 4 failed again, 6 still waiting"""
    return f"{now.handled:,} handled, {now.failed:,} failed again, {now.waiting:,} still waiting"


@contextmanager
def _bar(title: str, total: int, is_shown: bool) -> Iterator[Callable[[int, str], None]]:
    if not is_shown or not sys.stderr.isatty():
        yield lambda completed, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, detail="")
        yield lambda completed, text: bar.update(task, completed=completed, detail=text)


@contextmanager
def status_line(activity: str) -> Iterator[Callable[[str], None]]:
    """A progress line on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(activity) as status:
        yield lambda text: status.update(f"{activity}: {text}")
