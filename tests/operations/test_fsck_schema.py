"""The schema of a database, compared with the migrations."""

import pytest

from oncehook import Inbox
from oncehook.operations.fsck_schema import changed_files, expected_objects
from tests.support.ages import set_age
from tests.support.fsck import run_fsck, violations
from tests.support.servers import Postgres, private_pgbouncer, run_sql
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_partition_that_is_not_attached_is_found(postgres: Postgres) -> None:
    """Not one of this week: opening the database attaches those."""
    database = postgres.database(migrated=True)
    inbox = Inbox(database, worker=False)
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
    set_age(database, "evt_1", 20)
    (name,) = run_sql(database, "SELECT tableoid::regclass::text FROM webhook_payloads")[0]
    run_sql(database, f"ALTER TABLE webhook_payloads DETACH PARTITION {name}")
    with private_pgbouncer(postgres) as bouncer:  # no check needs a separate session
        found = violations(await run_fsck(bouncer.url(database)))
    assert found == {"partitions": [f"{name} is not attached"], "payload_missing": ["received without a payload"]}


async def test_index_that_is_not_valid_and_trigger_that_is_disabled_are_found(database: str) -> None:
    if database.startswith("sqlite"):
        run_sql(database, "DROP TRIGGER webhook_receipts_deleted")
        expected = ["webhook_receipts_deleted is missing"]
    else:
        run_sql(database, "ALTER TABLE webhook_receipts DISABLE TRIGGER webhook_receipts_deleted")
        index = "'webhook_receipts_due'::regclass"
        run_sql(database, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {index}")
        expected = [f"webhook_receipts_{part} is not valid or is disabled" for part in ("deleted", "due")]
    assert violations(await run_fsck(database)) == {"schema": expected}


async def test_expected_objects_are_those_of_the_migrations(database: str) -> None:
    dialect = "sqlite" if database.startswith("sqlite") else "postgres"
    names = expected_objects(dialect)
    assert {
        "webhook_receipts",
        "webhook_receipts_deleted",
        "webhook_dlq",
        "webhook_receipts_serial_processing",
    } <= names
    if dialect == "postgres":
        assert {"webhook_state", "webhook_receipts_once", "webhook_finish", "webhook_receipt_ids"} <= names


def test_migrations_of_this_installation_are_those_that_were_recorded() -> None:
    assert changed_files() == []
