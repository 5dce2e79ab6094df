"""Handlers' PostgreSQL connections without the fast path: by the setting, or because the driver has changed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.store.postgres.session import HandlerConnection
from oncehook.testing import deliver, drain
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


LEAVES = "SET application_name = 'left behind'; PREPARE leftover AS SELECT 1; SELECT pg_advisory_lock(7)"

PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE name = 'leftover'"

FINDS = f"SELECT current_setting('application_name') || ({PREPARED})"


async def handle_two(inbox: Inbox) -> list[str]:
    """Handle two events, and return the session state that each handler observes."""
    observed: list[str] = []

    @inbox.on("stripe", "*")
    async def note(event: Event, tx: Any) -> None:
        observed.append(await tx.fetchval(FINDS))
        await tx.execute(LEAVES)

    async with inbox.lifespan():
        for _ in range(2):
            assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
            await drain(inbox)
    return observed


@pytest.mark.parametrize("fast", [True, False])
async def test_session_is_clean_with_and_without_the_fast_path(
    make_inbox: Callable[..., Inbox], rows: Rows, fast: bool
) -> None:
    inbox = make_inbox(fast_paths=fast, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    first, second = await handle_two(inbox)
    assert "left behind" not in second and second.endswith("0")
    assert first == second
    assert rows("SELECT DISTINCT status FROM webhook_receipts") == [("processed",)]
    ours = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    assert rows(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND {ours}") == [(0,)]


async def test_fast_path_is_turned_off_if_the_driver_does_not_report_the_user(
    make_inbox: Callable[..., Inbox],
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    # It stands for a driver that does not report the user.
    monkeypatch.setattr(HandlerConnection, "get_settings", lambda self: SimpleNamespace())
    inbox = make_inbox(concurrency=1, fast_paths=True)
    inbox.source("stripe", secrets=["whsec_test"])
    _, second = await handle_two(inbox)
    assert "left behind" not in second and second.endswith("0")
    (line,) = [line for line in lines() if line["event"] == "fast_path_off"]
    assert line["path"] == "handler transactions"
    assert rows("SELECT DISTINCT status FROM webhook_receipts") == [("processed",)]
