"""The schema in both dialects: migrations, the states as a CHECK, equal names, the view, the JSON of an event."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import oncehook
from oncehook.config.settings import Settings
from oncehook.model.errors import RowRefused
from oncehook.model.receipt import TRANSITIONS, Filter, State
from oncehook.store import make_store, queries
from oncehook.store.protocols import Store
from tests.events import NotAState, Rows, make_claim
from tests.servers import ask

pytestmark = pytest.mark.anyio

# What one dialect needs and the other has another way for; everything else is in both.
POSTGRES_ONLY = {
    "begin_handling",
    "before_finish",
    "finish",
    "finish_batch",
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
    "backend",
    "turn_to_prune",
    "payload_days",
    "day_must_stay",
    "mark_day",
    "detach_day",
    "finish_detaching",
    "drop_day",
    "vacuum_day",
    "receipt_ids",
    "payload_partitions",
    "today",
    "make_partition",
    "attach_partition",
    "migration_lock",
    "durability",
    "days_received",
    "move_payloads",
    "create_database",
    "drop_database",
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

ATTEMPT_COLUMNS = "id receipt_id number started_at ended_at outcome error traceback handler version worker"

EVENT_KEYS = """
receipt source provider event_id type object_id occurred_at received_at status attempts next_attempt_at
processed_at failed_at last_error duplicates correlation_id delivery_id replays
"""


async def test_a_migrated_store_has_nothing_pending_and_migrating_again_does_nothing(store: Store) -> None:
    assert await store.pending_migrations() == []
    assert await store.migrate() == []


@pytest.mark.without_schema
async def test_without_migrating_everything_is_pending_until_it_is_asked_for(database: str) -> None:
    store = make_store(Settings(database=database, migrate="never"))
    await store.open()
    pending = await store.pending_migrations()
    assert [number for number, _, _ in pending] == list(range(1, len(pending) + 1)) and pending
    assert await store.migrate() == [f"{number:03d}_{name}" for number, name, _ in pending]
    assert await store.pending_migrations() == []
    assert (await store.claim([make_claim()]))[0].fresh
    await store.close()


@pytest.mark.without_schema
async def test_attempts_that_were_kept_before_they_were_a_view_are_still_there_once(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(Settings(database=database, migrate="never"))
    every = queries.migrations
    monkeypatch.setattr(queries, "migrations", lambda dialect: every(dialect)[:11])
    await store.open()
    try:
        await store.migrate()
        now = "'2026-11-16T04:00:00.000000Z'"
        ask(
            database,
            "INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, attempts, "
            f"outcome, processed_at, fingerprint) VALUES (1, 'shop', 'stripe', 'evt_1', 'paid', {now}, 'processed', 2, "
            f"'processed', {now}, '')",
        )
        ask(database, "INSERT INTO webhook_attempts (receipt_id, number, started_at, outcome, error) "
                      f"VALUES (1, 1, {now}, 'retrying', 'down'), (1, 2, {now}, 'processed', NULL)")  # fmt: skip
        monkeypatch.undo()
        assert (await store.migrate())[0] == "012_mark"
        history = "SELECT number, outcome, error FROM webhook_attempts ORDER BY id"
        assert ask(database, history) == [(1, "retrying", "down"), (2, "processed", None)]
    finally:
        await store.close()


async def test_stores_that_start_at_once_apply_each_migration_once(database: str) -> None:
    stores = [make_store(Settings(database=database)) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    dialect = database.partition(":")[0].removesuffix("ql")
    assert ask(database, "SELECT number, name FROM webhook_migrations ORDER BY number") == [
        (number, name) for number, name, _ in queries.migrations(dialect)
    ]
    outcomes = await asyncio.gather(*(store.claim([make_claim()]) for store in stores))
    assert sum(claimed.fresh for (claimed,) in outcomes) == 1
    await asyncio.gather(*(store.close() for store in stores))


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
        await store.claim([make_claim(status=word)])


@pytest.mark.parametrize("state", sorted(TRANSITIONS[None]))
async def test_what_the_door_may_insert_is_inserted_as_such(store: Store, state: State) -> None:
    (claimed,) = await store.claim([make_claim(status=state)])
    receipt = await store.get(claimed.receipt)
    assert receipt is not None and receipt.status is state


# -- SQL ------------------------------------------------------------------------------------------------------------


def test_both_dialects_have_the_same_query_names() -> None:
    postgres, sqlite = set(queries.load("postgres")), set(queries.load("sqlite"))
    assert postgres - sqlite == POSTGRES_ONLY
    assert sqlite - postgres == SQLITE_ONLY


def test_both_dialects_have_the_same_migrations() -> None:
    names = [[(number, name) for number, name, _ in queries.migrations(d)] for d in ("postgres", "sqlite")]
    assert names[0] == names[1]
    assert [number for number, _ in names[0]] == list(range(1, len(names[0]) + 1))


def test_every_query_is_used_and_no_other_sql_stands_in_the_source() -> None:
    source = {path: path.read_text("utf-8") for path in Path(oncehook.__file__).parent.rglob("*.py")}
    everything = "\n".join(source.values())
    for name in {*queries.load("postgres"), *queries.load("sqlite")}:
        assert f'sql["{name}"]' in everything or f'"{name}"' in everything, f"nobody asks {name}"
    statement = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE) [a-z*'(]")
    assert [str(path) for path, text in source.items() if statement.search(text)] == []


async def test_both_dialects_have_the_same_columns(store: Store, database: str, rows: Rows) -> None:
    tables = {
        "webhook_receipts": "id source provider event_id type object_id delivery_id occurred_at received_at status "
        "attempts next_attempt_at processed_at last_error correlation_id replays fingerprint "
        "lease lease_until leased_at worker crashes is_inline serial_key outcome handler started_at version "
        "failed_at replayed_at unhandled_at",
        "webhook_workers": "name registered_at seen_at",
        "webhook_handlers": "worker source pattern matcher is_projection",
        "webhook_live_handlers": "worker source pattern matcher is_projection seen_at",
        "webhook_past_attempts": ATTEMPT_COLUMNS,
        "webhook_attempts": ATTEMPT_COLUMNS,
        "webhook_audit": "id at actor action detail",
        "webhook_effects": "id scope key kind target args source receipt_id status attempts created_at next_attempt_at "
        "done_at last_error lease lease_until leased_at worker crashes replays",
        "webhook_entities": "scope kind id state at version is_terminal event_id receipt_id updated_at",
        "webhook_noops": "id at receipt_id source reason scope key",
        "webhook_email_events": "source key provider type bounce message_id recipient domain occurred_at reason tags "
        "metadata receipt_id",
        "webhook_email_status": "message_id recipient source status bounce reason occurred_at place event_key "
        "delivered_at opened_at clicked_at last_at",
        "webhook_suppressions": "address suppressed_at reason source event_key message_id added_at added_reason "
        "removed_at note actor",
        "webhook_deliveries": "id receipt_id delivery_id received_at fingerprint same_body",
        "webhook_rejections": "id source rejected_at reason detail method query headers body size",
        "webhook_secrets": "source secret verified first_used_at last_used_at",
        "webhook_pauses": "source paused_at actor reason ends_at",
        "webhook_refusals": "source minute_at reason refused",
        "webhook_acks": "source minute_at bucket acked",
        "webhook_incidents": "id key rule source opened_at value threshold summary below_at recovered_at worst",
        "webhook_alerts": "id incident_id target word number status attempts next_attempt_at told_at last_error lease "
        "worker",
        "webhook_turns": "name number taken_at",
        "webhook_dlq": "receipt source event_id type object_id attempts last_error received_at failed_at payload",
    }
    for table, expected in tables.items():
        assert columns(database, table) == expected.split()
    expected_payload = {"receipt_id", "body", "headers"}
    assert set(columns(database, "webhook_payloads")) - {"day"} == expected_payload


def columns(database: str, table: str) -> list[str]:
    if database.startswith("sqlite"):
        return [row[1] for row in ask(database, f"PRAGMA table_info({table})")]
    wanted = (
        f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' ORDER BY ordinal_position"
    )
    return [row[0] for row in ask(database, wanted)]


# -- what the outside reads -----------------------------------------------------------------------------------------


async def test_the_view_of_dead_letters_holds_the_failed_ones_with_payload_and_error(store: Store, rows: Rows) -> None:
    _, failed, _ = await store.claim(
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
    (claimed,) = await store.claim([make_claim(correlation_id=correlation)])
    (receipt,) = await store.find(Filter(), limit=1)
    event: dict[str, Any] = receipt.as_json()
    assert sorted(event) == sorted(EVENT_KEYS.split())
    assert event["correlation_id"] == (correlation or str(claimed.receipt))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["received_at"])
    assert (event["status"], event["processed_at"]) == ("received", None)
