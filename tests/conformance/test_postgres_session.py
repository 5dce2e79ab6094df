"""What a statement may leave in a session is judged by its text, which may err on the side of cleaning only."""

import time

import pytest

from oncehook.store.postgres_session import Leaves, leaves

PLAIN = [
    "INSERT INTO ledger (event_id, object_id) VALUES ($1, $2)",
    "insert into public.ledger(event_id) values ($1) on conflict (event_id) do update set seen = now() returning id;",
    "UPDATE accounts SET balance = balance - $1 WHERE id = $2 AND (balance > $1 OR credit)",
    "DELETE FROM carts WHERE id IN (SELECT cart FROM orders WHERE lower(mail) = $1)",
    "SELECT count(*), coalesce(sum(amount), 0)::numeric(10, 2) FROM ledger WHERE paid_at > now() - interval '1 day'",
    "WITH due AS (SELECT id FROM jobs LIMIT 1 FOR UPDATE SKIP LOCKED) UPDATE jobs SET done = true FROM due",
    "\n  MERGE INTO stock s USING sales x ON (x.sku = s.sku) WHEN MATCHED THEN DELETE",
    "SAVEPOINT handler",
    "ROLLBACK TO SAVEPOINT handler",
    "RELEASE SAVEPOINT handler",
]
CLEANED = [
    "SET app.who = 'me'",
    "SELECT set_config('app.who', $1, false)",
    "SELECT set_config ('app.who', $1, false)",
    "SELECT pg_catalog . set_config\n('app.who', $1, false)",
    "SELECT set_config/**/('app.who', $1, false)",
    "SELECT set_config--\n('app.who', $1, false)",
    "SELECT \"set_config\"('app.who', $1, false)",
    "SELECT U&\"set_config\"('app.who', $1, false)",
    "INSERT INTO ledger (note) SELECT * FROM remember($1)",
    "SELECT pg_advisory_lock(7)",
    "SELECT public.now()",
    "SELECT überall()",
    "SELECT 😀()",
    "SELECT 1 INTO TEMPORARY t",
    "SELECT 1; SET app.who = 'me'",
    "INSERT INTO ledger VALUES ('x'); LISTEN x",
    "CREATE TEMP TABLE t (a int)",
    "LISTEN leftover",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "LOCK TABLE ledger",
    "CALL anything()",
    "DO $$ BEGIN END $$",
    "EXPLAIN ANALYZE SELECT set_config('app.who', 'me', false)",
    "BEGIN",
    "",
]
USED_UP = [
    "PREPARE mine AS SELECT 1",
    "SELECT 1; prepare mine AS SELECT 1",
    "DEALLOCATE ALL",
    "discard all",
]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        *((one, Leaves.NOTHING) for one in PLAIN),
        *((one, Leaves.SETTINGS) for one in CLEANED),
        *((one, Leaves.STATEMENTS) for one in USED_UP),
    ],
)
def test_what_a_statement_may_leave(statement: str, left: Leaves) -> None:
    assert leaves(statement) is left


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO blobs VALUES ('\\x" + "ab" * 4_900 + "')",
        "SELECT 1" + " " * 9_900 + "; x",
        "SELECT a" + ".a" * 4_900,
        "INSERT INTO blobs VALUES ('\\x" + "ab" * 1_000_000 + "')",
    ],
)
def test_a_long_statement_does_not_hold_up_the_loop(statement: str) -> None:
    started = time.process_time()
    leaves(statement)
    assert time.process_time() - started < 0.2


def test_a_statement_that_is_too_long_to_be_judged_may_leave_anything() -> None:
    assert leaves(f"SELECT '{'x' * 10_000}'") is Leaves.SETTINGS
    assert leaves(f"PREPARE mine AS SELECT '{'x' * 10_000}'") is Leaves.STATEMENTS
