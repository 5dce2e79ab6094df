"""SQLAlchemy connections of handlers with and without the fast path."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from oncehook import Event, Inbox
from oncehook.integrations.sqlalchemy import cleaner
from oncehook.testing import deliver, drain

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["postgres"], indirect=True)]


async def pids_of_two(inbox: Inbox) -> list[int]:
    """The server processes that handle two events, one after the other."""
    pids: list[int] = []

    @inbox.on("stripe", "*")
    async def note(event: Event, tx: Any) -> None:
        pids.append((await tx.execute(text("SELECT pg_backend_pid()"))).scalar_one())

    async with inbox.lifespan():
        for _ in range(2):
            assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
            await drain(inbox)
    return pids


@pytest.mark.parametrize("fast", [True, False])
async def test_pool_keeps_the_connection_of_a_handler_only_on_the_fast_path(
    make_inbox: Callable[..., Inbox], database: str, fast: bool
) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    inbox = make_inbox(engine=engine, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox._runtime.set_fast_paths(fast)
    first, second = await pids_of_two(inbox)
    await engine.dispose()
    assert (first == second) is fast


async def test_fast_path_is_turned_off_if_sqlalchemy_has_changed(
    make_inbox: Callable[..., Inbox],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    # It stands for a later version of SQLAlchemy without the attributes that the fast path reads.
    monkeypatch.setattr(cleaner, "hasattr", lambda owner, name: False, raising=False)
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    inbox = make_inbox(engine=engine, concurrency=1, fast_paths=True)
    inbox.source("stripe", secrets=["whsec_test"])
    first, second = await pids_of_two(inbox)
    await engine.dispose()
    assert first != second
    (line,) = [line for line in lines() if line["event"] == "fast_path_off"]
    assert line["path"] == "SQLAlchemy connections"
