"""The background tasks of a worker start with it and end with the inbox."""

import asyncio
from collections.abc import Callable

import pytest

from oncehook import Inbox

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


def names_of_tasks() -> set[str]:
    """The coroutines that run in this event loop."""
    return {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]


async def test_background_tasks_run_only_while_a_worker_runs(make_inbox: Callable[..., Inbox]) -> None:
    before = names_of_tasks()
    inbox = make_inbox(worker=True)
    async with inbox.lifespan():
        during = names_of_tasks() - before
        assert "keep_rescuing" in during, "receipts of dead workers are rescued"
        assert any(name.startswith("Relay.") for name in during), "the relay runs"
        assert any(name.startswith("PruneLoop.") for name in during), "the prune loop runs"
        assert any(name.startswith("AlertMonitor.") for name in during), "the alert monitor runs"
    assert names_of_tasks() == before, "every task has ended"


async def test_an_inbox_without_a_worker_has_no_background_tasks(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(worker=False)
    async with inbox.lifespan():
        assert not any(name.startswith(("Relay.", "PruneLoop.", "keep_rescuing")) for name in names_of_tasks())
