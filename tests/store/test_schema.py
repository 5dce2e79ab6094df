"""The schema in both dialects: its columns, the CHECK on states, and the view of dead letters."""

import re

import pytest

from oncehook.model.errors import RowRefused
from oncehook.model.states import TRANSITIONS, State
from oncehook.store import queries
from oncehook.store.store import Store
from tests.support.events import NotAState, Rows, make_claim
from tests.support.schema import column_types
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio


def check_of_status(database: str) -> set[str]:
    """The statuses that the database allows."""
    if database.startswith("sqlite"):
        (text,) = run_sql(database, "SELECT sql FROM sqlite_master WHERE name = 'webhook_receipts'")[0]
        text = re.search(r"status IN \(([^)]*)\)", text)[1]  # type: ignore[index]
    else:
        query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = 'webhook_state'::regtype"
        ((text,),) = run_sql(database, query)
    return set(re.findall(r"'(\w+)'", text))


async def test_status_check_allows_exactly_the_states_of_the_state_machine(store: Store, database: str) -> None:
    assert check_of_status(database) == {state.value for state in State}
    assert set(TRANSITIONS) == {None, *State}
    reachable = set().union(*TRANSITIONS.values())
    assert reachable == set(State)


@pytest.mark.parametrize("status", NotAState)
async def test_unknown_status_is_rejected(store: Store, status: NotAState) -> None:
    with pytest.raises(RowRefused):
        await store.claims.insert([make_claim(status=status)])


@pytest.mark.parametrize("state", sorted(TRANSITIONS[None]))
async def test_receiver_can_insert_every_initial_state(store: Store, state: State) -> None:
    (claimed,) = await store.claims.insert([make_claim(status=state)])
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None and receipt.status is state


INTERNAL = {
    "webhook_migrations",
    "webhook_past_attempts",
    "webhook_workers",
    "webhook_handlers",
    "webhook_shards",
    "webhook_routes",
    "webhook_moves",
    "webhook_move_changes",
}
"""Tables that docs/schema.md does not list: only Oncehook reads them."""


def tables(database: str) -> set[str]:
    """Tables and views, without partitions."""
    if database.startswith("sqlite"):
        query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name LIKE 'webhook%'"
    else:
        query = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v') AND NOT relispartition"
        query += " AND relname LIKE 'webhook%'"
    return {row[0] for row in run_sql(database, query)}


async def test_database_has_exactly_the_documented_columns(store: Store, database: str) -> None:
    dialect = database.partition(":")[0].removesuffix("ql")
    listed = {
        table: {column: about[dialect] for column, about in columns.items() if about[dialect]}
        for table, columns in queries.columns().items()
    }
    assert {table: column_types(database, table) for table in tables(database) - INTERNAL} == listed


def test_both_dialects_have_the_same_columns() -> None:
    for table, columns in queries.columns().items():
        one_sided = {column for column, about in columns.items() if not (about["sqlite"] and about["postgres"])}
        assert one_sided == ({"day"} if table in ("webhook_payloads", "webhook_payload_objects") else set()), table


async def test_dlq_view_shows_failed_receipts_with_payload_and_error(store: Store, rows: Rows) -> None:
    _, failed, _ = await store.claims.insert(
        [
            make_claim("evt_1"),
            make_claim("evt_2", status=State.FAILED, last_error="no id", body=b"\x00\xff", type=None, object_id=None),
            make_claim("evt_3", status=State.IGNORED),
        ]
    )
    dead = rows("SELECT receipt, source, event_id, attempts, last_error, payload FROM webhook_dlq")
    assert dead == [(failed.receipt, "stripe", "evt_2", 0, "no id", b"\x00\xff")]
    assert rows("SELECT type, object_id FROM webhook_dlq") == [(None, None)]
