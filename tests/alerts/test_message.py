"""The message of a notification: its texts, its JSON, and its id."""

import json
from typing import Any

import pytest

from oncehook.alerts.message import compose, make_test_message, time_of
from oncehook.model.incident import LeasedAlert

OPENED_AT, RECOVERED_AT = "2026-11-16T03:00:00.000000Z", "2026-11-16T05:30:00.000000Z"


def make_alert(**changes: Any) -> LeasedAlert:
    values = {
        "id": 1, "lease": 1, "attempt": 1, "target": "ops", "word": "opened", "number": 0, "incident": 7,
        "key": "0af1", "rule": "dead_letters", "source": "stripe", "value": 2.0, "worst": 5.0, "threshold": 0.0,
        "summary": "stripe has dead letters: 2 (threshold 0).", "opened_at": OPENED_AT, "recovered_at": None,
    }  # fmt: skip
    return LeasedAlert(**{**values, **changes})


def test_opened_notification_has_the_problem_the_action_and_a_link() -> None:
    message = compose(make_alert(), None, "https://hooks.example.com")
    assert message.title == "Alert: dead_letters (stripe)"
    assert message.text.splitlines() == [
        "Alert: dead_letters (stripe). stripe has dead letters: 2 (threshold 0).",
        "Run `oncehook dead` to see the errors. Fix the cause, then run `oncehook replay --failed --source stripe`.",
        "https://hooks.example.com/dead",
    ]
    assert (message.at, message.recovered_at) == (OPENED_AT, None)


def test_recovery_notification_says_how_long_and_how_bad_it_was() -> None:
    message = compose(make_alert(word="recovered", value=0.0, recovered_at=RECOVERED_AT), None, None)
    assert message.summary == (
        "Recovered after 2h 30m. Worst value: 5. The alert was: stripe has dead letters: 2 (threshold 0)."
    )
    assert (message.remedy, message.link, message.at) == ("", None, RECOVERED_AT)


def test_reminder_shows_the_current_value() -> None:
    message = compose(make_alert(word="reminder", number=2, value=9.0), None, None)
    assert message.title == "Still open: dead_letters (stripe)"
    assert message.summary == "stripe has dead letters: 9 (threshold 0)."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "0af1-opened"),
        ({"word": "reminder", "number": 3}, "0af1-reminder3"),
        ({"word": "recovered"}, "0af1-recovered"),
    ],
)
def test_id_is_the_same_at_every_attempt_and_differs_per_notification(changes: dict[str, Any], expected: str) -> None:
    first, second = compose(make_alert(**changes), None, None), compose(make_alert(attempt=2, **changes), None, None)
    assert first.id == second.id == expected


def test_rule_of_another_version_still_sends_its_stored_summary() -> None:
    message = compose(make_alert(rule="from_the_future", summary="Something is wrong."), None, "https://x")
    assert (message.summary, message.remedy, message.link) == ("Something is wrong.", "", None)


def test_json_has_the_shape_of_standard_webhooks() -> None:
    body = json.loads(compose(make_alert(), None, None).as_json())
    assert (body["type"], body["timestamp"], body["data"]["word"]) == ("alert.opened", OPENED_AT, "opened")
    assert set(body["data"]) == {
        "id", "word", "incident", "rule", "source", "summary", "remedy", "value", "threshold", "opened_at",
        "recovered_at", "link",
    }  # fmt: skip


def test_test_message_says_that_it_is_a_test() -> None:
    message = make_test_message("x-test", OPENED_AT)
    assert message.text == "Test: test. This is a test. Alerts of this inbox will arrive here."
    assert time_of(message.at).hour == 3
