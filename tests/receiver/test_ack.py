"""The responses of the receiver: status, body and headers for each outcome."""

import json
from typing import Any

import pytest

from oncehook.model.claim import Claimed
from oncehook.model.states import State
from oncehook.providers.definition import AckOverride
from oncehook.receiver.ack import (
    ERRORS,
    JSON,
    TEXT,
    accepted_response,
    inline_failed_response,
    inline_processed_response,
    rejected_response,
    unavailable_response,
)
from tests.support.events import make_claim

PLAIN = AckOverride()


def claimed(receipt: int = 1, *, fresh: bool = True) -> Claimed:
    return Claimed(receipt, fresh, State.RECEIVED, b"", True)


@pytest.mark.parametrize(
    ("state", "fresh", "status", "outcome"),
    [
        (State.RECEIVED, True, 202, "accepted"),
        (State.RECEIVED, False, 200, "duplicate"),
        (State.IGNORED, True, 200, "ignored"),
        (State.IGNORED, False, 200, "duplicate"),
        (State.FAILED, True, 202, "accepted"),
    ],
)
def test_one_event_is_answered_with_its_outcome_id_and_receipt(
    state: State, fresh: bool, status: int, outcome: str
) -> None:
    code, body, headers = accepted_response(
        [make_claim("evt_1", status=state)], [claimed(7, fresh=fresh)], PLAIN, batch=False
    )
    assert (code, json.loads(body)) == (status, {"status": outcome, "event_id": "evt_1", "receipt": 7})
    assert headers == (JSON,)


def test_a_batch_is_answered_with_one_count_per_outcome() -> None:
    claims = [
        make_claim("a"),
        make_claim("b"),
        make_claim("c", status=State.IGNORED),
        make_claim("d", status=State.FAILED),
    ]
    results = [claimed(1), claimed(2, fresh=False), claimed(3), claimed(4)]
    status, body, _ = accepted_response(claims, results, PLAIN, batch=True)
    expected = {"status": "accepted", "accepted": 1, "duplicate": 1, "ignored": 1, "failed": 1}
    assert (status, json.loads(body)) == (202, expected)


def test_a_batch_of_duplicates_is_answered_with_200() -> None:
    status, body, _ = accepted_response([make_claim("a")] * 2, [claimed(fresh=False)] * 2, PLAIN, batch=True)
    assert status == 200 and json.loads(body)["duplicate"] == 2


def test_a_provider_that_expects_a_fixed_text_gets_it_for_every_outcome() -> None:
    override = AckOverride(status=200, body="[accepted]")
    expected = (200, b"[accepted]", (TEXT,))
    assert accepted_response([make_claim()], [claimed()], override, batch=False) == expected
    assert inline_processed_response([make_claim()], [claimed()], ["processed"], override, batch=False) == expected


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_has_its_code_and_a_sentence(code: str) -> None:
    status, body, _ = rejected_response(code)
    error: dict[str, Any] = json.loads(body)["error"]
    assert status == ERRORS[code][0] and error["code"] == code
    assert error["message"].endswith("."), "the message must be a sentence"


def test_unavailable_names_the_seconds_to_wait() -> None:
    status, body, headers = unavailable_response(7, "The source is paused.")
    assert status == 503 and (b"retry-after", b"7") in headers
    assert json.loads(body) == {"error": {"code": "unavailable", "message": "The source is paused."}}


def test_a_failed_inline_handler_is_answered_with_500() -> None:
    status, body, _ = inline_failed_response()
    assert status == 500 and json.loads(body)["error"]["code"] == "handler_failed"


def test_inline_events_are_answered_with_their_final_state() -> None:
    status, body, _ = inline_processed_response([make_claim("evt_1")], [claimed(3)], ["failed"], PLAIN, batch=False)
    assert (status, json.loads(body)) == (200, {"status": "failed", "event_id": "evt_1", "receipt": 3})
    outcomes = ["processed", "duplicate", "processed"]
    _, body, _ = inline_processed_response([make_claim()] * 3, [claimed()] * 3, outcomes, PLAIN, batch=True)
    assert json.loads(body) == {"status": "processed", "processed": 2, "duplicate": 1}
