"""Events and dead letters in requests and responses."""

import msgspec

from oncehook.model.rows import StoredAttempt, StoredDuplicate
from oncehook.web.api.schemas.events import (
    Attempt,
    DeadGroup,
    DeadLetters,
    DuplicateDelivery,
    Event,
    EventDetail,
    Events,
    EventsQuery,
    Noop,
)
from tests.support.api_schemas import assert_rejects, schema_of


def test_empty_query_selects_the_newest_50_events() -> None:
    assert msgspec.convert({}, EventsQuery) == EventsQuery(status="", limit=50, cursor="")
    assert msgspec.convert({"status": "unhandled"}, EventsQuery).status == "unhandled"


def test_query_rejects_unknown_statuses_long_texts_and_limits() -> None:
    for value in ({"status": "done"}, {"limit": 0}, {"limit": 501}, {"search": "x" * 501}, {"since": "x" * 41}):
        assert_rejects(EventsQuery, value)


def test_detail_has_every_key_of_the_event_and_its_history() -> None:
    assert EventDetail.__struct_fields__[: len(Event.__struct_fields__)] == Event.__struct_fields__
    history = {"deliveries", "attempts_history", "replays_history", "effects", "noops", "entities"}
    assert history < set(schema_of(EventDetail)["required"])


def test_duplicates_and_attempts_have_the_fields_of_the_stored_rows() -> None:
    assert set(DuplicateDelivery.__struct_fields__) == set(StoredDuplicate.__struct_fields__)
    assert set(Attempt.__struct_fields__) == set(StoredAttempt.__struct_fields__)


def test_noop_is_a_repeated_effect_or_a_stale_event() -> None:
    noop = {"at": "2026-11-15T03:00:00.000000Z", "reason": "stale", "scope": "invoice", "key": "in_1"}
    assert msgspec.to_builtins(msgspec.convert(noop, Noop)) == noop
    assert_rejects(Noop, {**noop, "reason": "late"})


def test_page_and_groups_need_every_key() -> None:
    assert set(schema_of(Events)["required"]) == {"events", "next", "looked_to", "note"}
    assert set(schema_of(DeadLetters)["required"]) == {"total", "groups"}
    assert set(schema_of(DeadGroup)["required"]) == set(DeadGroup.__struct_fields__)
