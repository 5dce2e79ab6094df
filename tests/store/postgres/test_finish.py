"""The statement that settles events as processed, as text."""

import pytest

from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.store import queries
from oncehook.store.postgres.finish import finish_statement, in_one_line, literal

SQL = {name: in_one_line(queries.load("postgres")[name]) for name in ("finish", "finish_others")}


def settled(receipt: int, lease: int = 1, seconds: float | None = 0.25) -> Settled:
    return Settled(receipt, lease, State.PROCESSED, "processed", handler="handle", version="v1", seconds=seconds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "NULL"),
        ("plain", "E'plain'"),
        ("it's", "E'it''s'"),
        ("a\\b", "E'a\\\\b'"),
        ("\\'; DROP TABLE x; --", "E'\\\\''; DROP TABLE x; --'"),
        ("nul\x00", "E'nul\ufffd'"),
    ],
)
def test_literal_escapes_quotes_and_backslashes(text: str | None, expected: str) -> None:
    assert literal(text) == expected


def test_one_event_is_settled_by_one_call() -> None:
    statement = finish_statement(SQL, [settled(7, lease=3)], resets=True, guarded=None)
    assert statement == "CALL webhook_finish(7, 3, E'handle', E'v1', 0.25, True, NULL)"


def test_unknown_duration_is_null() -> None:
    assert ", NULL, False, True)" in finish_statement(SQL, [settled(7, seconds=None)], resets=False, guarded=True)


def test_receipts_of_a_batch_are_settled_in_ascending_order() -> None:
    statement = finish_statement(SQL, [settled(9, 2), settled(7, 5), settled(8, 1)], resets=True, guarded=True)
    first, others = statement.split("; ")
    assert first.startswith("CALL webhook_finish(7, 5,")
    assert others == "CALL webhook_finish_others('{8,9}', '{1,2}', E'handle', E'v1', 0.25)"


def test_message_in_one_line_has_no_comments() -> None:
    assert in_one_line("-- explains\nRESET ALL;\n-- more\nUNLISTEN *") == "RESET ALL; UNLISTEN *"
