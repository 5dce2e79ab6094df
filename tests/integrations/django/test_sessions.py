"""The Django connections of handlers: kept, cleaned, closed and checked."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from oncehook import ConfigurationError
from oncehook.inbox import Inbox
from oncehook.integrations.django.instance import DjangoDatabase
from oncehook.integrations.django.sessions import Sessions
from tests.support.django_project import using_database
from tests.support.servers import sqlite_file
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_session_state_does_not_reach_the_next_handler(postgres: Any) -> None:
    address = postgres.database(migrated=True)
    found: list[Any] = []
    with using_database(address, CONN_MAX_AGE=None, OPTIONS={"options": "-c statement_timeout=7s"}) as inbox:

        @inbox.on("stripe", "*")
        def handle(event: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid(), current_setting('search_path'), current_setting('TimeZone')")
                found.append(cursor.fetchone())
                cursor.execute("SET search_path TO nowhere; SET TIME ZONE 'Asia/Tokyo'; CREATE TEMP TABLE t (x int)")
                cursor.execute("SELECT pg_advisory_lock(7)")

        async with inbox.lifespan():
            await claim(inbox, "evt_1", "evt_2")
            inbox._runtime.set_concurrency(1)
            for leased in await inbox._runtime.store.leases.take(2, 30, "worker-1"):
                await inbox._runtime.start_processor().process(leased)
            assert len(found) == 2
            assert found[0] == found[1], "the connection is the same, and its state is that of a new one"
            await inbox._runtime.sessions.dispose()


async def test_connection_is_closed_after_each_handler_by_default(postgres: Any) -> None:
    processes: set[int] = set()
    with using_database(postgres.database(migrated=True)) as inbox:

        @inbox.on("stripe", "*")
        def handle(event: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                processes.add(cursor.fetchone()[0])

        async with inbox.lifespan():
            await claim(inbox, "evt_1", "evt_2")
            for leased in await inbox._runtime.store.leases.take(2, 30, "worker-1"):
                await inbox._runtime.start_processor().process(leased)
    assert len(processes) == 2, "CONN_MAX_AGE is 0"


async def test_database_of_another_alias_is_an_error_at_start(sqlite: str, tmp_path: Path) -> None:
    other = sqlite_file(tmp_path / "other.db")
    with using_database(sqlite):
        inbox = Inbox(other, engine=DjangoDatabase("default"), worker=False)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="must commit in one database and schema"):
            await inbox.start()


def test_connections_of_the_parent_are_not_used_after_a_fork(sqlite: str) -> None:
    with using_database(sqlite) as inbox:
        sessions: Sessions = inbox._runtime.sessions
        wrapper = sessions.check_out()
        sessions.check_in(wrapper)
        assert sessions.check_out() is wrapper
        sessions.check_in(wrapper)
        sessions._process = os.getpid() + 1
        assert sessions.check_out() is not wrapper


def test_a_limited_number_of_connections_is_kept(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncehook.integrations.django.sessions.MAX_FREE", 1)
    with using_database(postgres.database(migrated=True), CONN_MAX_AGE=None) as inbox:
        sessions: Sessions = inbox._runtime.sessions
        first, second = sessions.check_out(), sessions.check_out()
        for wrapper in (first, second):
            sessions.check_in(wrapper)
        assert sessions.check_out() is first and sessions.check_out() is not second
