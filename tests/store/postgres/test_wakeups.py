"""Wake-ups on PostgreSQL: NOTIFY and the listening connection."""

import asyncio

import pytest

from oncehook.model.errors import StoreUnavailable
from oncehook.store.store import Store
from tests.support.events import Rows
from tests.support.stores import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

END_LISTENER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'oncehook listen'"
)


async def test_listener_is_woken_at_the_start_and_by_another_process(store: Store, database: str) -> None:
    wakeups: list[bool] = []
    listening = asyncio.create_task(store.wakeups.listen(lambda: wakeups.append(True)))
    await eventually(lambda: len(wakeups) == 1, "the listener is woken once when it starts")
    async with open_store(database) as other:
        await other.wakeups.notify()
        await eventually(lambda: len(wakeups) == 2, "the notification of another process wakes the listener")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_lost_connection_ends_the_listener_with_an_error(store: Store, rows: Rows) -> None:
    wakeups: list[bool] = []
    listening = asyncio.create_task(store.wakeups.listen(lambda: wakeups.append(True)))
    await eventually(lambda: wakeups)
    assert rows(END_LISTENER) == [(True,)]
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(listening, 10)


async def test_listen_returns_immediately_if_notify_is_off(database: str) -> None:
    async with open_store(database, notify=False) as store:
        assert not store.wakeups.is_on
        await asyncio.wait_for(store.wakeups.listen(lambda: None), 30)
        await store.wakeups.notify()


async def test_notify_on_a_closed_store_does_not_raise(store: Store) -> None:
    await store.close()
    await store.wakeups.notify()
