"""The table of log events matches the code and the documentation."""

import re
from pathlib import Path

import pytest

import oncehook
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.observability.signals import ATTEMPT_EVENTS, CLAIM_EVENTS, DUPLICATE_EVENTS, EFFECT_EVENTS, NOOPS


def test_every_emitted_event_is_in_the_table_and_every_entry_is_emitted() -> None:
    source = "\n".join(path.read_text("utf-8") for path in Path(oncehook.__file__).parent.rglob("*.py"))
    emitted = set(re.findall(r'emit\(\s*"(\w+)"', source))
    by_status = {*CLAIM_EVENTS.values(), *DUPLICATE_EVENTS.values(), *ATTEMPT_EVENTS.values(), *EFFECT_EVENTS.values()}
    of_noops = {event for event, _ in NOOPS.values()}
    lost = {"lease_lost", "effect_lease_lost"}
    alerts, log = {"alert_sent", "alert_retrying", "alert_failed"}, {"log_lines_dropped"}
    assert emitted | by_status | of_noops | lost | alerts | log == set(LOG_EVENTS)


@pytest.mark.parametrize("event", LOG_EVENTS)
def test_name_stands_alone_and_description_is_in_sentences(event: str) -> None:
    level, description = LOG_EVENTS[event]
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event)
    assert level in ("info", "warning", "error")
    assert description[0].isupper() and description.endswith((".", ".)", "`."))
    assert max(len(sentence.split()) for sentence in description.split(". ")) <= 25, "a sentence has at most 25 words"


def test_bugs_are_errors_that_ask_for_a_report() -> None:
    bugs = [event for event, (_, description) in LOG_EVENTS.items() if "A bug in" in description]
    assert bugs == ["receiver_failed", "dashboard_failed", "background_failed"]
    for event in bugs:
        level, description = LOG_EVENTS[event]
        assert level == "error" and description.endswith("Please report it.")
