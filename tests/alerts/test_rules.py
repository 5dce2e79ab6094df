"""The alert rules: their texts, thresholds and values. No database."""

import importlib
import re
from typing import Any

import pytest

from oncehook.alerts import read_alerts
from oncehook.alerts.rules import (
    BY_NAME,
    RULES,
    Reading,
    enabled_rules,
    evaluate,
    format_duration,
    sentence_facts,
    title_of,
)
from oncehook.config.settings import SourceSettings
from oncehook.model.incident import RuleMeasurement
from oncehook.providers.source import Source


def test_every_rule_has_a_sentence_and_a_remedy_with_existing_commands() -> None:
    facts = dict.fromkeys(("source", "value", "threshold", "provider", "horizon"), "x")
    for rule in RULES:
        assert rule.sentence.format_map(facts).endswith(".")
        commands = re.findall(r"`oncehook ([^`]+)`", rule.remedy.format_map(facts))
        assert commands
        for words in map(str.split, commands):
            command = importlib.import_module(f"oncehook.cli.{words[0]}").command
            command.make_context(words[0], words[1:]).close()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (45, "45s"), (330, "5m 30s"), (3600, "1h"), (90000, "1d 1h"), (86400 * 3, "3d"), (3601, "1h")],
)
def test_format_duration_shows_the_two_largest_units(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


STRIPE = Source("stripe", SourceSettings(secrets=("whsec_test",)), max_body=1000)


def evaluate_one(rule: str, alerts: dict[str, Any], **measured: Any) -> list[Reading]:
    """Evaluate one measurement of stripe."""
    row = RuleMeasurement(source="stripe", **measured)
    return evaluate({rule: [row]}, read_alerts(alerts), {"stripe": STRIPE})


def test_reading_is_firing_only_above_its_threshold() -> None:
    (at_limit,) = evaluate_one("dead_letters", {"dead_letters": 2}, number=2)
    (above,) = evaluate_one("dead_letters", {"dead_letters": 2}, number=3)
    assert (at_limit.is_firing, above.is_firing) == (False, True)
    assert above.summary == "stripe has dead letters: 3 (threshold 2)."
    assert above.remedy.endswith("run `oncehook replay --failed --source stripe`.")


def test_rule_that_is_off_has_no_reading_and_is_not_measured() -> None:
    assert evaluate_one("lag", {"lag": "off"}, value=9000.0) == []
    enabled = {rule.name for rule in enabled_rules(read_alerts({"lag": "off"}))}
    assert "lag" not in enabled and "silent" not in enabled, "silent is off unless it is set"
    assert "lag" in {rule.name for rule in enabled_rules(read_alerts({"lag": "off", "sources": {"x": {"lag": "1m"}}}))}


def test_threshold_of_a_source_overrides_the_common_one() -> None:
    alerts = {"lag": "5m", "sources": {"stripe": {"lag": "1h"}}}
    (reading,) = evaluate_one("lag", alerts, value=1800.0)
    assert (reading.threshold, reading.is_firing) == (3600.0, False)


def test_paused_source_has_no_lag_reading() -> None:
    assert evaluate_one("lag", {}, value=9000.0, is_paused=True) == []


def test_rejected_retries_need_several_recent_rejections() -> None:
    horizon = STRIPE.provider.horizon or 0.0
    (reading,) = evaluate_one("refusing", {}, value=horizon * 0.8, number=3, last=60.0)
    assert reading.threshold == horizon * 0.75 and reading.is_firing
    assert "Stripe stops retrying after 3d" in reading.summary
    assert evaluate_one("refusing", {}, value=horizon * 0.8, number=2, last=60.0) == [], "two may be a stranger's"
    assert evaluate_one("refusing", {}, value=horizon * 0.8, number=3, last=horizon / 2) == [], "they have stopped"


def test_texts_for_a_source_that_is_no_longer_configured_name_no_provider() -> None:
    facts = sentence_facts(BY_NAME["failing"], "old", 60.0, 30.0, None)
    assert (facts["source"], facts["provider"], facts["horizon"]) == ("old", "its provider", "?")


def test_title_names_the_measured_quantity_without_a_value() -> None:
    assert title_of(BY_NAME["rejections"], "stripe") == "Rejected deliveries to stripe in the last 5 minutes"


def test_negative_measurements_count_as_zero() -> None:
    (reading,) = evaluate_one("lag", {}, value=-3.0)
    assert reading.value == 0.0, "clocks of two machines may differ"
