"""Sources, their secrets, rejections and pauses in requests and responses."""

import msgspec

from oncehook.model.values import LONGEST
from oncehook.web.api.schemas.sources import Pause, PauseRequest, PauseState, RejectedDelivery, SecretUse, SourceState
from oncehook.web.api.state import SOURCE_FIELDS
from tests.support.api_schemas import assert_rejects, schema_of


def test_pause_without_seconds_has_no_end() -> None:
    assert msgspec.convert({}, PauseRequest) == PauseRequest(reason=None, seconds=None)
    assert msgspec.convert({"seconds": LONGEST}, PauseRequest).seconds == LONGEST
    for value in ({"seconds": 0}, {"seconds": LONGEST + 1}, {"reason": "x" * 501}):
        assert_rejects(PauseRequest, value)


def test_rejection_has_findings_with_a_cause_evidence_and_a_remedy() -> None:
    finding = {"cause": "newline", "shows": "The body ends with a line feed.", "remedy": "Send the raw bytes."}
    rejection = {"at": "2026-11-15T03:00:00.000000Z", "reason": "bad_signature", "detail": "", "findings": [finding]}
    assert msgspec.to_builtins(msgspec.convert(rejection, RejectedDelivery)) == rejection
    assert_rejects(RejectedDelivery, {**rejection, "findings": [{"cause": "newline"}]})


def test_removed_secret_has_no_index() -> None:
    use = {"secret": None, "mark": "a1b2", "verified": 3, "last_used_at": None, "advice": "Remove it."}
    assert msgspec.convert(use, SecretUse).secret is None


def test_source_has_its_settings_and_its_state() -> None:
    assert set(SOURCE_FIELDS) < set(SourceState.__struct_fields__)
    assert set(schema_of(SourceState)["required"]) == set(SourceState.__struct_fields__)
    assert msgspec.to_builtins(PauseState("stripe", True)) == {"source": "stripe", "paused": True}
    assert msgspec.to_builtins(Pause("now", "me")) == {"at": "now", "actor": "me", "reason": None, "until": None}
