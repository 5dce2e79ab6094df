"""Consumers in requests and responses."""

from oncehook.web.api.schemas.consumers import ConsumerPauseState, Consumers, ConsumerState
from tests.support.api_schemas import assert_rejects, schema_of


def test_every_field_of_a_consumer_is_required() -> None:
    assert set(schema_of(ConsumerState)["required"]) == set(ConsumerState.__struct_fields__)
    assert schema_of(Consumers)["required"] == ["consumers"]


def test_sources_have_lists_of_patterns() -> None:
    assert_rejects(Consumers, {"consumers": [{"consumer": "main", "sources": {"stripe": "*"}}]})


def test_pause_state_names_the_consumer() -> None:
    assert ConsumerPauseState.__struct_fields__ == ("consumer", "paused")
