"""Errors of a delivery become responses, and are counted and logged once."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from oncehook.model.errors import Rejected, StoreUnavailable
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.receiver.ack import unavailable_response
from oncehook.receiver.error_responses import ErrorResponses
from oncehook.receiver.request import CLOSE, RequestRejected

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stats() -> ReceiverStats:
    return ReceiverStats()


@pytest.fixture
def errors(stats: ReceiverStats) -> ErrorResponses:
    return ErrorResponses({"stripe"}, stats)


def test_a_bad_signature_is_answered_with_401_and_counted(
    errors: ErrorResponses, stats: ReceiverStats, lines: Lines
) -> None:
    status, body, _ = errors.respond("stripe", Rejected("bad_signature", "no secret matches"))
    assert status == 401 and b"no secret matches" not in body, "the response must not contain the detail"
    assert stats.unwritten_rejections == {("stripe", "bad_signature"): 1}
    assert [(line["event"], line["reason"]) for line in lines()] == [("rejected", "bad_signature")]


@pytest.mark.parametrize(("path", "logged"), [("stripe/acme", "acme"), ("stripe/a b", None), ("stripe", None)])
def test_a_rejection_names_the_tenant_in_the_log_and_in_no_count(
    errors: ErrorResponses, stats: ReceiverStats, lines: Lines, path: str, logged: str | None
) -> None:
    errors.respond(path, Rejected("bad_signature", "no secret matches"))
    errors.respond(path, RequestRejected.with_code("unknown_tenant", CLOSE))
    errors.respond(f"nobody/{path}", RequestRejected.with_code("unknown_source", CLOSE))
    assert [line.get("tenant") for line in lines()] == [logged, logged, None]
    assert set(stats.unwritten_rejections) == {
        ("stripe", "bad_signature"), ("stripe", "unknown_tenant"), ("unknown", "unknown_source")
    }  # fmt: skip


def test_a_request_to_an_unknown_source_is_counted_as_unknown(errors: ErrorResponses, stats: ReceiverStats) -> None:
    error = RequestRejected.with_code("unknown_source", CLOSE)
    assert errors.respond("../../etc/passwd", error) == error.response
    assert stats.unwritten_rejections == {("unknown", "unknown_source"): 1}, "labels must not come from a sender"


def test_a_rejection_without_a_code_is_not_counted_again(
    errors: ErrorResponses, stats: ReceiverStats, lines: Lines
) -> None:
    error = RequestRejected(unavailable_response(3))
    assert errors.respond("stripe", error) == unavailable_response(3)
    assert not stats.unwritten_rejections and lines() == []


def test_an_unavailable_store_is_answered_with_503_and_its_retry_after(errors: ErrorResponses, lines: Lines) -> None:
    status, _, headers = errors.respond("stripe", StoreUnavailable("the database is gone", retry_after=9))
    assert status == 503 and (b"retry-after", b"9") in headers
    assert [line["event"] for line in lines()] == ["unavailable"]


def test_a_bug_is_answered_with_503_and_logged_without_its_message(errors: ErrorResponses, lines: Lines) -> None:
    value = "-".join(("a", "value", "of", "the", "sender"))  # not a literal, which the traceback would show
    try:
        raise ZeroDivisionError(value)
    except ZeroDivisionError as error:
        status, body, _ = errors.respond("stripe", error)
    assert status == 503 and json.loads(body)["error"]["code"] == "unavailable"
    (line,) = lines()
    assert (line["event"], line["error"]) == ("receiver_failed", "ZeroDivisionError")
    assert "test_a_bug_is_answered" in line["traceback"] and value not in json.dumps(line)
