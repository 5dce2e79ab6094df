"""The named queries of both dialects."""

import re
from pathlib import Path

import pytest

import oncehook
from oncehook.store import queries

pytestmark = pytest.mark.anyio


# What one dialect needs and the other has another way for; everything else is in both.
POSTGRES_ONLY = {
    "claim_with_copies",
    "claim_with_objects",
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
    "primary_position",
    "standby_position",
    "payload_days",
    "day_is_needed",
    "detached_day_is_needed",
    "attach_day",
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
    # Only PostgreSQL has shards.
    "shard_here",
    "lock_shards",
    "add_shard",
    "shard_number",
    "has_events",
    "start_ids",
    "routes",
    "put_route",
    "shard_figures",
    "move_of",
    "moves",
    "put_move",
    "lock_move",
    "hold_move",
    "set_phase",
    "delete_move",
    "put_cursors",
    "pause_moved",
    "copy_pause",
    "unpause_moved",
    "source_pause",
    "keys_to_move",
    "write_moved_keys",
    "watch_source",
    "unwatch_source",
    "move_session",
    "last_moved",
    "receipts_to_move",
    "read_moved",
    "delete_moved",
    "write_moved",
    "digest_moved",
    "effects_to_move",
    "read_moved_effects",
    "delete_moved_effects",
    "write_moved_effects",
    "digest_moved_effects",
    "entities_to_move",
    "read_moved_entities",
    "delete_moved_entities",
    "write_moved_entities",
    "move_changes",
    "delete_move_changes",
    "clear_move_changes",
    "moved_work",
    "moved_counts",
    "shared_scopes",
    "effect_scopes",
    "leftover_receipts",
    "leftover_effects",
}

SQLITE_ONLY = {
    "set_tokens",
    "last_receipt",
    "fresh_receipts",
    "claim_payload",
    "claim_copies",
    "claim_object",
    "claim_object_payload",
    "claim_inline",
    "claim_failed",
    "claim_key",
    "settle_attempts",
    "keep_attempts",
    "free_pages",
}


def test_both_dialects_have_the_same_query_names() -> None:
    postgres, sqlite = set(queries.load("postgres")), set(queries.load("sqlite"))
    assert postgres - sqlite == POSTGRES_ONLY
    assert sqlite - postgres == SQLITE_ONLY


def files_of_queries(dialect: str) -> dict[str, str]:
    """The file of each query of a dialect."""
    texts = {file.name: file.read_text("utf-8") for file in (queries.SQL / dialect).glob("*.sql")}
    return {name: file for file, text in texts.items() for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)}


def test_query_is_in_the_same_file_in_both_dialects() -> None:
    postgres, sqlite = files_of_queries("postgres"), files_of_queries("sqlite")
    shared = postgres.keys() & sqlite.keys()
    assert len(shared) > 100
    assert {name: postgres[name] for name in shared} == {name: sqlite[name] for name in shared}


def test_every_query_is_used_and_python_files_contain_no_sql() -> None:
    source = {path: path.read_text("utf-8") for path in Path(oncehook.__file__).parent.rglob("*.py")}
    everything = "\n".join(source.values())
    for name in {*queries.load("postgres"), *queries.load("sqlite")}:
        assert f'sql["{name}"]' in everything or f'"{name}"' in everything, f"no code uses the query {name}"
    statement = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|ALTER TABLE|DROP TABLE) [a-z*'(]")
    code = {path: re.sub(r'""".*?"""', "", text, flags=re.DOTALL) for path, text in source.items()}  # without examples
    assert [str(path) for path, text in code.items() if statement.search(text)] == []
