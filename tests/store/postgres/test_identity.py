"""The identity of a PostgreSQL database: its parts, and new connections."""

import re

import pytest

from oncehook.store import queries
from oncehook.store.identity import Identity
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.stores import postgres_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

SHAPE = r"\d+/[0-9A-F]{8}/\d+\.\d+/\d+/\d+/\d+/\d+"


async def test_name_has_cluster_timeline_start_database_table_and_epoch(store: Store, database: str) -> None:
    name = (await store.identity()).name
    assert re.fullmatch(SHAPE, name), name
    ((cluster, oid),) = run_sql(
        database,
        "SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database"
        " WHERE datname = current_database()",
    )
    assert name.startswith(f"{cluster}/00000001/") and f"/{oid}/" in name


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE webhook_receipts",
        "CREATE TABLE copied (LIKE webhook_receipts INCLUDING ALL); DROP TABLE webhook_receipts CASCADE;"
        " ALTER TABLE copied RENAME TO webhook_receipts",
    ],
)
async def test_restore_of_the_table_changes_the_name(store: Store, database: str, change: str) -> None:
    before = await store.identity()
    for statement in change.split(";"):
        run_sql(database, statement)
    assert (await store.identity()).name != before.name


async def test_role_without_the_control_functions_gets_a_name_without_timeline(store: Store, database: str) -> None:
    before = await store.identity()
    run_sql(database, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    run_sql(database, "CREATE ROLE limited")
    run_sql(database, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited")
    run_sql(database, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO limited")
    try:
        run_sql(database, "SET ROLE limited")

        ((name, *_),) = run_sql(database, queries.load("postgres")["identity"])
    finally:
        run_sql(database, "RESET ROLE")
        run_sql(database, "DROP OWNED BY limited")
        run_sql(database, "DROP ROLE limited")
    assert name == "unknown" + before.name[before.name.index("/", before.name.index("/") + 1) :]


async def test_new_connection_reports_a_change_before_its_first_statement(
    store: Store, database: str, postgres: Postgres
) -> None:
    changes: list[Identity] = []
    store.identities.on_identity_change(changes.append)
    await store.identities.check()
    run_sql(database, "UPDATE webhook_identity SET epoch = 1")
    await store.receipts.get(1)
    assert changes == [], "an existing connection is compared by `check` alone"
    sessions = f"datname = '{database.rpartition('/')[2]}'"
    run_sql(postgres.url("postgres"), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {sessions}")
    await store.claims.insert([make_claim()])  # retries on a new connection
    assert [identity.name.rpartition("/")[2] for identity in changes] == ["1"]


async def test_lost_connection_is_reported_to_the_monitor(store: Store) -> None:
    identity = await store.identities.check()
    losses = store.identities._losses
    async with postgres_of(store).pool.connection() as connection:
        connection.terminate()
    await eventually(lambda: store.identities._losses > losses, "the loss was not noticed")
    await store.identities.check()
    assert store.identities.current == identity
