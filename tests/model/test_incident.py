"""Incidents and their notifications."""

import pytest

from oncehook.model.incident import Incident, RuleMeasurement, SentAlert, SettledAlert, TargetLease


def incident(**changes: object) -> Incident:
    values: dict[str, object] = {
        "incident": 1, "rule": "dead_letters", "source": "stripe", "opened_at": "2026-11-15T00:00:00.000000Z",
        "value": 1.0, "worst": 2.0, "threshold": 0.0, "summary": "Dead letters of stripe: 1 (threshold 0).",
        "below_at": None,
    }  # fmt: skip
    return Incident(**values | changes)  # type: ignore[arg-type]


def test_query_of_a_rule_may_return_only_some_columns() -> None:
    row = RuleMeasurement(source="stripe", value=3)
    assert (row.number, row.last, row.bucket, row.is_paused) == (0, 0, 0, False)


def test_incident_is_printed_with_its_notifications() -> None:
    sent = SentAlert(target="ops", word="opened", status="told", attempts=1, told_at=None, last_error=None)
    printed = incident(alerts=(sent,)).as_json()
    assert printed["alerts"] == [sent.as_json()] or printed["alerts"] == (sent.as_json(),)
    assert incident().alerts == ()


def test_notification_that_is_settled_is_not_retried_unless_it_says_when() -> None:
    assert (SettledAlert(1, 1, "told").after, SettledAlert(1, 1, "told").error) == (0.0, None)


def test_lease_of_a_target_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TargetLease("ops", 30.0).seconds = 1.0  # type: ignore[misc]
