"""The state that a handler leaves in its PostgreSQL session does not reach another handler."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


LEFT_BEHIND = """
    SET app.who = 'the first';
    SELECT pg_advisory_lock(7);
    CREATE TEMP TABLE leftover (note text) ON COMMIT PRESERVE ROWS;
    DECLARE leftover CURSOR WITH HOLD FOR SELECT 1;
    LISTEN leftover
"""

FOUND = """
    SELECT coalesce(nullif(current_setting('app.who', true), ''), 'unset') AS who,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
           to_regclass('leftover') AS tables, (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
           (SELECT count(*) FROM pg_listening_channels()) AS channels
"""

CLEAN = {"who": "unset", "locks": 0, "tables": None, "cursors": 0, "channels": 0}


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_session_state_of_a_handler_does_not_reach_the_next(inbox: Inbox, database: str, ends: str) -> None:
    observed: list[dict[str, Any]] = []
    backends: list[int] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        if event.id == "evt_2":
            observed.append(dict(await tx.fetchrow(FOUND)))
            return
        await tx.execute(LEFT_BEHIND)
        if ends == "badly":
            raise Fail("after all that")

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed" if ends == "well" else "failed", "processed"])
    assert observed == [CLEAN]
    assert len(set(backends)) == 1


async def test_session_is_clean_if_handlers_follow_each_other_and_some_fail(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    """Each transaction is begun with the end of the last one. A rollback must not undo the cleaning."""
    observed: list[str] = []
    inbox = make_inbox(worker=False, concurrency=4)
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # possible only as a transaction's first
        observed.append(await tx.fetchval("SELECT coalesce(current_setting('app.who', true), '')"))
        await tx.execute("SET app.who = 'me'")
        if int(event.id[-3:]) % 3 == 0:
            raise Fail("every third")

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:03d}") for number in range(120)])
        inbox._runtime.start_worker()
        await eventually(lambda: sorted(set(statuses(database))) == ["failed", "processed"])
    assert statuses(database).count("failed") == 40
    assert set(observed) <= {""}
    assert len(observed) == 120


@pytest.mark.parametrize(
    "makes",
    [
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SELECT set_config('default_transaction_isolation', 'serializable', false)",
    ],
)
async def test_default_transaction_settings_of_a_handler_do_not_reach_the_next(
    inbox: Inbox, database: str, makes: str
) -> None:
    observed: list[tuple[int, str, str]] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        kind = "current_setting('transaction_isolation'), current_setting('transaction_read_only')"
        observed.append(tuple(await tx.fetchrow(f"SELECT pg_backend_pid(), {kind}")))
        if event.id == "evt_2":
            await tx.execute(makes)

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(1, 6)])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"] * 5)
    assert set(observed) == {(observed[0][0], "read committed", "off")}


async def test_prepared_statement_of_a_handler_is_closed_with_its_connection(inbox: Inbox, database: str) -> None:
    prepared: list[Any] = []
    backends: list[int] = []

    @inbox.on("stripe", "invoice.paid")
    async def prepare(event: Event, tx: Any) -> None:
        backends.append(await tx.fetchval("SELECT pg_backend_pid()"))
        if event.id == "evt_1":
            prepared.append(await tx.prepare("INSERT INTO ledger VALUES ('late') RETURNING 1"))

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_3")])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"] * 3)
    first, second, third = backends
    assert first != second == third  # its connection is cut, and no other
    with pytest.raises(Exception, match=r"closed|released"):
        await prepared[0].fetchval()
    assert run_sql(database, "SELECT * FROM ledger") == []


async def test_connection_is_not_reused_after_a_handler_set_a_codec(inbox: Inbox, database: str) -> None:
    seen: list[tuple[int, Any]] = []

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event, tx: Any) -> None:
        if event.id == "evt_1":
            await tx.set_type_codec("text", encoder=str, decoder=str.upper, schema="pg_catalog")
        seen.append((await tx.fetchval("SELECT pg_backend_pid()"), await tx.fetchval("SELECT 'quiet'::text")))

    await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
    inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed", "processed"])
    (first, loud), (second, quiet) = seen
    assert (loud, quiet) == ("QUIET", "quiet")
    assert first != second
