"""Email in requests and responses."""

import msgspec

from oncehook.email import DIMENSIONS
from oncehook.web.api.schemas.email import (
    EmailCount,
    EmailCountsQuery,
    EmailMessageQuery,
    SuppressedQuery,
    Suppression,
    SuppressionChange,
)
from tests.support.api_schemas import assert_rejects, schema_of


def test_message_id_is_required_and_has_the_length_of_a_mail_header() -> None:
    assert msgspec.convert({"message": "x" * 998}, EmailMessageQuery).message == "x" * 998
    for value in ({}, {"message": ""}, {"message": "x" * 999}):
        assert_rejects(EmailMessageQuery, value)


def test_suppressions_are_listed_by_50() -> None:
    assert msgspec.convert({}, SuppressedQuery) == SuppressedQuery(address="", search="", cursor="", limit=50)
    assert_rejects(SuppressedQuery, {"limit": 0})


def test_change_needs_an_address_and_rejects_unknown_fields() -> None:
    assert msgspec.convert({"address": "jane@example.com"}, SuppressionChange).note == ""
    for value in ({}, {"address": ""}, {"address": "a@b.example", "reason": "x"}, {"address": "x" * 501}):
        assert_rejects(SuppressionChange, value)


def test_removed_suppression_keeps_its_keys_with_null() -> None:
    assert set(schema_of(Suppression)["required"]) == set(Suppression.__struct_fields__)


def test_count_leaves_out_the_dimensions_that_were_not_requested() -> None:
    assert msgspec.to_builtins(EmailCount(events=3, tag="news")) == {"events": 3, "tag": "news"}
    assert {*DIMENSIONS, "events", "bounce"} == set(EmailCount.__struct_fields__)
    assert msgspec.convert({}, EmailCountsQuery).by == "day,type"
