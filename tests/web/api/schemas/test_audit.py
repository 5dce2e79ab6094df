"""The audit log in requests and responses."""

import msgspec

from oncehook.model.rows import AuditEntry
from oncehook.web.api.schemas.audit import Audit, AuditQuery, AuditRow
from tests.support.api_schemas import assert_rejects


def test_query_defaults_to_the_first_50_entries() -> None:
    assert msgspec.convert({}, AuditQuery) == AuditQuery(cursor="", limit=50)


def test_query_bounds_the_limit_and_the_cursor() -> None:
    for value in ({"limit": 0}, {"limit": 501}, {"cursor": "x"}, {"cursor": "1" * 19}):
        assert_rejects(AuditQuery, value)


def test_row_has_the_fields_of_a_stored_entry() -> None:
    assert AuditRow.__struct_fields__ == AuditEntry.__struct_fields__
    row = {"id": 1, "at": "2026-11-15T03:00:00.000000Z", "actor": "user:otto", "action": "replay", "detail": {"n": 1}}
    page = msgspec.convert({"rows": [row], "next": None}, Audit)
    assert page.rows[0].detail == {"n": 1} and page.next is None
