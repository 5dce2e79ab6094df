"""The settings watch calls its listeners once for each change, also after a failure."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.errors import StoreUnavailable
from oncehook.runtime import settings_watch
from oncehook.runtime.settings_watch import UNKNOWN, SettingsWatch
from oncehook.store.directory import next_revision
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_watch, "INTERVAL", 0.05)


Change = Callable[[], None]
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def change(rows: Rows) -> Change:
    """Increments the settings revision, as another process does."""

    def increment() -> None:
        rows("UPDATE webhook_revisions SET number = number + 1")

    return increment


class Calls(list[int]):
    """A listener that records the numbers it gets."""

    async def __call__(self, previous: int) -> None:
        self.append(previous)

    __hash__ = object.__hash__  # type: ignore[assignment]  # each listener is its own key


async def test_listener_is_called_at_the_start_and_after_each_change(store: Store, change: Change) -> None:
    calls, watch = Calls(), SettingsWatch(store)
    watch.add(calls)
    await watch.load()
    await watch.refresh()
    assert calls == [UNKNOWN], "without a change, the listener must not be called again"
    change()
    change()
    await watch.refresh()
    await watch.refresh()
    assert calls == [UNKNOWN, 0]
    change()
    await watch.refresh()
    assert calls == [UNKNOWN, 0, 2]


async def test_listener_that_failed_is_called_again_with_the_same_number(store: Store, change: Change) -> None:
    numbers: list[int] = []

    async def fail_once(previous: int) -> None:
        numbers.append(previous)
        if len(numbers) == 2:
            raise StoreUnavailable("gone")

    calls, watch = Calls(), SettingsWatch(store)
    watch.add(fail_once)
    watch.add(calls)
    await watch.load()
    change()
    with pytest.raises(StoreUnavailable):
        await watch.refresh()
    assert calls == [UNKNOWN, 0], "a listener that fails does not stop the next one"
    await watch.refresh()
    await watch.refresh()
    assert (numbers, calls) == ([UNKNOWN, 0, 0], [UNKNOWN, 0])


async def test_listener_reads_all_rows_after_a_restore_to_an_earlier_revision(store: Store, rows: Rows) -> None:
    calls, watch = Calls(), SettingsWatch(store)
    watch.add(calls)
    rows("UPDATE webhook_revisions SET number = 9")
    await watch.load()
    rows("UPDATE webhook_revisions SET number = 4")
    await watch.refresh()
    assert calls == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("worker", [True, False])
async def test_inbox_notices_a_change_while_it_runs_and_after_the_table_was_away(
    make_inbox: Callable[..., Inbox], rows: Rows, change: Change, lines: Lines, worker: bool
) -> None:
    inbox, calls = make_inbox(worker=worker), Calls()
    inbox._runtime.settings_watch.add(calls)
    async with inbox.lifespan():
        assert calls == [UNKNOWN]
        change()
        await eventually(lambda: calls == [UNKNOWN, 0], "the watch calls the listener", within=5)
        rows("ALTER TABLE webhook_revisions RENAME TO webhook_revisions_away")
        failures = ("settings_database_unavailable", "background_failed")
        await eventually(lambda: any(line["event"] in failures for line in lines()), "the watch logs that")
        rows("ALTER TABLE webhook_revisions_away RENAME TO webhook_revisions")
        change()
        await eventually(lambda: calls == [UNKNOWN, 0, 1], "the watch notices the change afterwards")
    change()
    async with inbox.lifespan():
        assert calls == [UNKNOWN, 0, 1, UNKNOWN], "an inbox that starts again reads all rows"


async def test_two_processes_see_a_change_of_the_store(store: Store, make_inbox: Callable[..., Inbox]) -> None:
    first, second, calls, others = make_inbox(), make_inbox(), Calls(), Calls()
    first._runtime.settings_watch.add(calls)
    second._runtime.settings_watch.add(others)
    async with first.lifespan(), second.lifespan():
        assert await first._runtime.store.database.executor.transaction(next_revision) == 1
        await eventually(lambda: len(calls) > 1 and others == [UNKNOWN, 0], "both processes notice it", within=5)


async def test_listeners_read_everything_after_the_identity_of_the_database_changed(
    store: Store, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    """The revision is the same: a failover may have lost one change, and another one got its number."""
    calls, watch = Calls(), SettingsWatch(store)
    watch.add(calls)
    await watch.load()
    await store.identities.renew()
    await watch.refresh()
    await watch.refresh()
    assert calls == [UNKNOWN, UNKNOWN]
    assert [event for event, _ in emitted] == ["database_identity_changed"]


async def test_identity_that_changes_while_a_listener_reads_makes_it_read_again(store: Store) -> None:
    calls: list[int] = []
    watch = SettingsWatch(store)

    async def listener(previous: int) -> None:
        calls.append(previous)
        if len(calls) == 2:
            await store.identities.renew()
            await store.identities.check()

    watch.add(listener)
    await watch.load()
    await store.identities.renew()
    await watch.refresh()
    await watch.refresh()
    assert calls == [UNKNOWN, UNKNOWN, UNKNOWN]
