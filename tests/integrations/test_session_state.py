"""The state of a PostgreSQL session, as statements that restore it."""

import pytest

from oncehook.integrations.session_state import state_of


@pytest.mark.parametrize(
    ("row", "restore", "is_whole"),
    [
        ((None, None, "{}", False), "", True),
        ((None, None, "{}", True), "", False),
        (
            (None, "app", '{"TimeZone": "UTC"}', False),
            "RESET SESSION AUTHORIZATION; RESET ROLE; SELECT pg_catalog.set_config(E'TimeZone', E'UTC', false), "
            "pg_catalog.set_config(E'role', E'app', false)",
            True,
        ),
    ],
)
def test_state_is_restored_by_statements(row: tuple[object, ...], restore: str, is_whole: bool) -> None:
    assert state_of(row) == (restore, is_whole)
