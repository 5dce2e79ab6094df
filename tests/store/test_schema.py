"""The schema in both dialects: its columns, the states as a CHECK, equal names, the view, the JSON of an event."""

import re
from pathlib import Path
from typing import Any

import pytest

import oncehook
from oncehook.model.errors import RowRefused
from oncehook.model.receipt import Filter
from oncehook.model.states import TRANSITIONS, State
from oncehook.store import queries
from oncehook.store.store import Store
from tests.support.events import NotAState, Rows, make_claim
from tests.support.servers import ask

pytestmark = pytest.mark.anyio

# What one dialect needs and the other has another way for; everything else is in both.
POSTGRES_ONLY = {
    "begin_handling",
    "before_reset",
    "before_finish",
    "finish",
    "finish_others",
    "is_committed",
    "after_finish",
    "unlock_session",
    "unlock_guarded_session",
    "clean_session",
    "guard_session",
    "guard_transaction",
    "unlock_prepared_session",
    "deallocate_statements",
    "session_state",
    "end_sessions",
    "notify",
    "backend_pid",
    "prune_lock",
    "payload_days",
    "day_is_needed",
    "flag_day",
    "detach_day",
    "finish_detach",
    "drop_day",
    "vacuum_day",
    "receipt_ids",
    "payload_partitions",
    "today",
    "create_partition",
    "attach_partition",
    "migration_lock",
    "durability",
    "days_received",
    "move_payloads",
    "create_database",
    "drop_database",
    "session_user",
}
SQLITE_ONLY = {
    "last_receipt",
    "fresh_receipts",
    "claim_payload",
    "claim_inline",
    "claim_failed",
    "claim_key",
    "settle_attempts",
    "keep_attempts",
    "free_pages",
}

INTERNAL = {"webhook_migrations", "webhook_past_attempts", "webhook_workers", "webhook_handlers"}
"""Tables that docs/schema.md does not list: only Oncehook reads them."""

EVENT_KEYS = """
receipt source provider event_id type object_id occurred_at received_at status attempts next_attempt_at
processed_at failed_at last_error duplicates correlation_id delivery_id replays
"""


# -- the state machine ----------------------------------------------------------------------------------------------


def check_of_status(database: str) -> set[str]:
    """The words that the database itself allows as a status."""
    if database.startswith("sqlite"):
        (text,) = ask(database, "SELECT sql FROM sqlite_master WHERE name = 'webhook_receipts'")[0]
        text = re.search(r"status IN \(([^)]*)\)", text)[1]  # type: ignore[index]
    else:
        wanted = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = 'webhook_state'::regtype"
        ((text,),) = ask(database, wanted)
    return set(re.findall(r"'(\w+)'", text))


async def test_the_check_on_status_is_the_states_of_the_state_machine(store: Store, database: str) -> None:
    assert check_of_status(database) == {state.value for state in State}
    assert set(TRANSITIONS) == {None, *State}
    reachable = set().union(*TRANSITIONS.values())
    assert reachable == set(State)


@pytest.mark.parametrize("word", NotAState)
async def test_no_other_word_is_taken_for_a_status(store: Store, word: NotAState) -> None:
    with pytest.raises(RowRefused):
        await store.claims.insert([make_claim(status=word)])


@pytest.mark.parametrize("state", sorted(TRANSITIONS[None]))
async def test_what_the_door_may_insert_is_inserted_as_such(store: Store, state: State) -> None:
    (claimed,) = await store.claims.insert([make_claim(status=state)])
    receipt = await store.receipts.get(claimed.receipt)
    assert receipt is not None and receipt.status is state


# -- SQL ------------------------------------------------------------------------------------------------------------


def test_both_dialects_have_the_same_query_names() -> None:
    postgres, sqlite = set(queries.load("postgres")), set(queries.load("sqlite"))
    assert postgres - sqlite == POSTGRES_ONLY
    assert sqlite - postgres == SQLITE_ONLY


def files_of_queries(dialect: str) -> dict[str, str]:
    """The name of the file that each query of a dialect is in."""
    texts = {file.name: file.read_text("utf-8") for file in (queries.SQL / dialect).glob("*.sql")}
    return {name: file for file, text in texts.items() for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)}


def test_query_is_in_the_same_file_in_both_dialects() -> None:
    postgres, sqlite = files_of_queries("postgres"), files_of_queries("sqlite")
    shared = postgres.keys() & sqlite.keys()
    assert len(shared) > 100
    assert {name: postgres[name] for name in shared} == {name: sqlite[name] for name in shared}


def test_every_query_is_used_and_no_other_sql_stands_in_the_source() -> None:
    source = {path: path.read_text("utf-8") for path in Path(oncehook.__file__).parent.rglob("*.py")}
    everything = "\n".join(source.values())
    for name in {*queries.load("postgres"), *queries.load("sqlite")}:
        assert f'sql["{name}"]' in everything or f'"{name}"' in everything, f"no code uses the query {name}"
    statement = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE) [a-z*'(]")
    code = {path: re.sub(r'""".*?"""', "", text, flags=re.DOTALL) for path, text in source.items()}  # without examples
    assert [str(path) for path, text in code.items() if statement.search(text)] == []


async def test_database_has_exactly_the_columns_that_the_docs_list(store: Store, database: str) -> None:
    dialect = database.partition(":")[0].removesuffix("ql")
    listed = {
        table: {column: about[dialect] for column, about in columns.items() if about[dialect]}
        for table, columns in queries.columns().items()
    }
    assert {table: types(database, table) for table in tables(database) - INTERNAL} == listed


def test_both_dialects_have_the_same_columns() -> None:
    for table, columns in queries.columns().items():
        one_sided = {column for column, about in columns.items() if not (about["sqlite"] and about["postgres"])}
        assert one_sided == ({"day"} if table == "webhook_payloads" else set()), table


def tables(database: str) -> set[str]:
    """Tables and views, without the partitions of a day."""
    if database.startswith("sqlite"):
        wanted = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name LIKE 'webhook%'"
    else:
        wanted = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v') AND NOT relispartition"
        wanted += " AND relname LIKE 'webhook%'"
    return {row[0] for row in ask(database, wanted)}


def types(database: str, table: str) -> dict[str, str]:
    """The type of every column, in the words of the docs: without a length or a precision, a domain as its base."""
    if database.startswith("sqlite"):
        return {row[1]: row[2].lower() for row in ask(database, f"PRAGMA table_info({table})")}
    wanted = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
    short = {"timestamp with time zone": "timestamptz", "double precision": "double"}
    return {column: short.get(type_, type_) for column, type_ in ask(database, wanted)}


# -- what the outside reads -----------------------------------------------------------------------------------------


async def test_the_view_of_dead_letters_holds_the_failed_ones_with_payload_and_error(store: Store, rows: Rows) -> None:
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


@pytest.mark.parametrize("correlation", [None, "trace_1"])
async def test_the_json_of_an_event_has_exactly_the_promised_keys(store: Store, correlation: str | None) -> None:
    (claimed,) = await store.claims.insert([make_claim(correlation_id=correlation)])
    (receipt,) = await store.receipts.find(Filter(), limit=1)
    event: dict[str, Any] = receipt.as_json()
    assert sorted(event) == sorted(EVENT_KEYS.split())
    assert event["correlation_id"] == (correlation or str(claimed.receipt))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["received_at"])
    assert (event["status"], event["processed_at"]) == ("received", None)
