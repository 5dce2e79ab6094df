"""Incidents and alert rules in responses."""

import msgspec

from oncehook.web.api.schemas.alerts import AlertsState, AlertState, Incident, RuleState
from tests.support.api_schemas import assert_rejects, schema_of

NOTIFICATION = {
    "target": "ops", "word": "opened", "status": "told", "attempts": 1, "told_at": "2026-11-15T03:00:00.000000Z",
    "last_error": None,
}  # fmt: skip


def test_notification_has_the_documented_words_only() -> None:
    state = msgspec.convert(NOTIFICATION, AlertState)
    assert msgspec.to_builtins(state) == NOTIFICATION
    assert_rejects(AlertState, {**NOTIFICATION, "word": "closed"})
    assert_rejects(AlertState, {**NOTIFICATION, "status": "sent"})


def test_rule_without_a_source_has_no_value() -> None:
    rule = {
        "rule": "silent", "is_on": False, "is_firing": False, "unit": "seconds", "source": None, "value": None,
        "threshold": None,
    }  # fmt: skip
    assert msgspec.convert(rule, RuleState).value is None
    assert_rejects(RuleState, {**rule, "unit": "hours"})


def test_state_needs_incidents_and_rules_and_every_field_of_an_incident() -> None:
    assert set(schema_of(AlertsState)["required"]) == {"incidents", "rules"}
    assert set(schema_of(Incident)["required"]) == set(Incident.__struct_fields__)
