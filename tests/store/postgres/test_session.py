"""A handler's session on PostgreSQL: cleaning, and settling in any state that a handler leaves."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox, Retry
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.sessions import FOUND, LEFT
from tests.support.stores import statuses
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.mark.sampled(7)
@pytest.mark.parametrize("left", LEFT)
async def test_session_state_does_not_reach_the_next_handler(tenant_inbox: Inbox, database: str, left: str) -> None:
    """Handlers follow each other, so their transactions are begun ahead. Every second that leaves state fails."""
    observed: list[dict[str, Any]] = []
    backends: set[int] = set()

    @tenant_inbox.on("stripe", "invoice.paid")
    async def probe(event: Event, tx: Any) -> None:
        observed.append(dict(await tx.fetchrow(FOUND)))
        backends.add(await tx.fetchval("SELECT pg_backend_pid()"))

    @tenant_inbox.on("stripe", "charge.paid")
    async def leave(event: Event, tx: Any) -> None:
        await tx.execute(LEFT[left])
        if int(event.id[-1]) % 4 == 3:
            raise Fail("after all that")

    types = ["invoice.paid", "charge.paid"] * 4 + ["invoice.paid"]
    await tenant_inbox._runtime.store.claims.insert(
        [make_claim(f"evt_{number}", type=type) for number, type in enumerate(types)]
    )
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: statuses(database).count("processed") == 7 and statuses(database).count("failed") == 2)
    assert observed == [observed[0]] * 5
    assert (
        observed[0] | {"customer": "of everybody", "settings": 0, "locks": 0, "tables": 0, "last_number": "none"}
        == observed[0]
    )
    assert len(backends) == 1


ONCE = Retry(attempts=1)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "left",
    [
        "SET search_path = tenant_a",
        "SET LOCAL search_path = tenant_a",
        "SET LOCAL search_path = shadow, public",
        "SET LOCAL ROLE other_role",
        "SET SESSION AUTHORIZATION other_role",
        "SET LOCAL statement_timeout = '50ms'",
        "SET lock_timeout = '1ms'",
        "SET LOCAL row_security = off",
        "SET CONSTRAINTS ALL DEFERRED",
        "SET LOCAL enable_indexscan = off",
        "SET standard_conforming_strings = off",
        "CREATE TEMP TABLE webhook_receipts AS SELECT * FROM webhook_receipts",
        "PREPARE oncehook_mark AS SELECT 1",
    ],
)
@pytest.mark.parametrize("batch", [None, 3])
async def test_event_is_processed_in_any_session_state_that_the_handler_leaves(
    tenant_inbox: Inbox, database: str, left: str, batch: int | None
) -> None:
    run_sql(database, "CREATE SCHEMA shadow")
    run_sql(database, "CREATE TABLE shadow.webhook_receipts (LIKE public.webhook_receipts)")
    attempts: list[int] = []

    async def leave(events: Any, tx: Any) -> None:
        for event in events if batch else [events]:
            await tx.execute("INSERT INTO public.ledger VALUES ($1)", event.id)
        attempts.append(len(events) if batch else 1)
        await tx.execute(left)

    tenant_inbox.on("stripe", "invoice.paid", retry=ONCE, batch=batch)(leave)
    await tenant_inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(3)])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert run_sql(database, "SELECT status, last_error FROM webhook_receipts") == [("processed", None)] * 3
    assert run_sql(database, "SELECT note FROM ledger ORDER BY 1") == [("evt_0",), ("evt_1",), ("evt_2",)]
    assert attempts == ([3] if batch else [1, 1, 1])


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("ending", "is_kept"),
    [
        (["ROLLBACK; BEGIN"], False),
        (["COMMIT; BEGIN"], True),
        (["END; START TRANSACTION"], True),
        (["ROLLBACK AND CHAIN"], False),
        (["COMMIT AND CHAIN"], True),
        (["ROLLBACK", "BEGIN"], False),
        (["COMMIT", "BEGIN"], True),
        (["COMMIT"], True),
        (["SELECT 1; RESET ALL"], False),
    ],
)
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("cleans", [True, False])
async def test_handler_that_ends_or_replaces_its_transaction_fails(
    make_inbox: Callable[..., Inbox], database: str, ending: list[str], is_kept: bool, batch: int | None, cleans: bool
) -> None:
    """The event is never processed without its writes. Writes that the handler committed itself stay."""
    inbox = make_inbox(worker=False, clean_sessions=cleans)
    inbox.source("stripe", secrets=["whsec_test"])

    async def end(events: Any, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ('one') ON CONFLICT DO NOTHING")
        for statement in ending:
            await tx.execute(statement)

    inbox.on("stripe", "invoice.paid", retry=ONCE, batch=batch)(end)
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (note text PRIMARY KEY)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1"), make_claim("evt_2")])
        inbox._runtime.start_worker()
        await eventually(lambda: set(statuses(database)) <= {"processed", "failed"})
    assert statuses(database) == ["failed", "failed"]
    [error] = {row[0] for row in run_sql(database, "SELECT last_error FROM webhook_receipts")}
    assert "the handler ended its transaction itself" in error
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(int(is_kept),)]


async def test_handler_fails_if_it_makes_its_transaction_read_only(tenant_inbox: Inbox, database: str) -> None:
    @tenant_inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def read(event: Event, tx: Any) -> None:
        await tx.execute("SET TRANSACTION READ ONLY")

    await tenant_inbox._runtime.store.claims.insert([make_claim("evt_1")])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["failed"])
    assert "read-only transaction" in run_sql(database, "SELECT last_error FROM webhook_receipts")[0][0]


async def test_deferred_trigger_runs_with_the_settings_and_role_of_its_handler(
    tenant_inbox: Inbox, database: str
) -> None:
    run_sql(database, "CREATE TABLE audit (who text, role text)")
    run_sql(database, "GRANT INSERT ON audit, ledger TO other_role")
    run_sql(
        database,
        "CREATE FUNCTION audits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO audit VALUES (current_setting('app.who'), current_user); RETURN NULL; END $$",
    )
    run_sql(
        database,
        "CREATE CONSTRAINT TRIGGER audits AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION audits()",
    )

    @tenant_inbox.on("stripe", "invoice.paid", retry=ONCE)
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("SET LOCAL app.who = 'the handler'; SET LOCAL ROLE other_role")
        await tx.execute("INSERT INTO ledger VALUES ($1)", event.id)

    await tenant_inbox._runtime.store.claims.insert([make_claim("evt_1")])
    tenant_inbox._runtime.start_worker()
    await eventually(lambda: statuses(database) == ["processed"])
    assert run_sql(database, "SELECT * FROM audit") == [("the handler", "other_role")]
