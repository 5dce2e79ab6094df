"""Claims and their results."""

import msgspec
import pytest

from oncehook.model.claim import Claimed
from oncehook.model.event import EventFacts
from oncehook.model.states import State
from tests.support.events import make_claim


def test_claim_is_queued_without_a_lease_unless_it_is_inline() -> None:
    claim = make_claim("evt_1")
    assert (claim.status, claim.inline_seconds, claim.serial_key, claim.keys) == (State.RECEIVED, None, None, ())
    assert make_claim("evt_1", inline_seconds=30.0).inline_seconds == 30.0


def test_claim_has_the_facts_of_its_event() -> None:
    assert isinstance(make_claim("evt_1"), EventFacts)
    assert make_claim("evt_1").event_id == "evt_1"


def test_claim_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        make_claim("evt_1").event_id = "evt_2"  # type: ignore[misc]


def test_result_of_a_claim_has_the_same_body_unless_it_says_otherwise() -> None:
    result = Claimed(7, True, State.RECEIVED, b"fingerprint")
    assert result.same_body and msgspec.structs.replace(result, same_body=False).same_body is False
