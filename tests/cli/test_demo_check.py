"""The demo's check: which responses break the guarantee, and which deliveries of other senders count."""

import asyncio
from typing import Any

from oncehook.cli.demo_check import OtherSendersMiddleware, ResponseLog, count_outcomes, parse_response
from oncehook.cli.demo_screen import describe_check


def ack(outcome: str, event_id: str) -> str:
    return f'{{"status":"{outcome}","event_id":"{event_id}","receipt":1}}'


def test_an_event_that_is_acked_twice_counts_once() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    log.record("stripe", 200, ack("duplicate", "evt_1"), ["evt_1"], genuine=True)
    assert log.check(receipts=1).holds
    assert (log.counts.deliveries["stripe"], log.counts.duplicate["stripe"]) == (2, 1)


def test_an_event_that_is_accepted_twice_breaks_the_guarantee() -> None:
    log = ResponseLog()
    for _ in range(2):
        log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=1)) == "BROKEN: 1 events accepted twice"


def test_an_acked_event_without_a_receipt_breaks_the_guarantee() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=0)) == "BROKEN: 1 events acked but 0 receipts"


def test_a_forged_delivery_that_is_accepted_breaks_the_guarantee() -> None:
    log = ResponseLog()
    log.record("stripe", 202, ack("accepted", "evt_1"), [], genuine=False)
    assert "1 forged deliveries accepted" in describe_check(log.check(receipts=1))


def test_a_genuine_delivery_that_is_rejected_breaks_the_guarantee() -> None:
    log = ResponseLog()
    log.record("stripe", 401, "{}", ["evt_1"], genuine=True)
    assert describe_check(log.check(receipts=0)) == "BROKEN: 1 genuine deliveries rejected"


def test_an_unexpected_response_breaks_the_guarantee() -> None:
    log = ResponseLog()
    log.record("stripe", 500, "Internal Server Error", ["evt_1"], genuine=True)
    assert not log.check(receipts=0).holds


def test_an_unavailable_receiver_does_not_break_the_guarantee() -> None:
    log = ResponseLog()
    log.record("stripe", 503, "", ["evt_1"], genuine=True)
    log.record("stripe", 0, "", ["evt_1"], genuine=True)
    assert log.check(receipts=0).holds and log.counts.unavailable["stripe"] == 2


def test_outcomes_are_counted_for_one_event_and_for_a_batch() -> None:
    assert count_outcomes({"status": "duplicate", "event_id": "evt_1"}) == {"duplicate": 1}
    batch = {"status": "accepted", "accepted": 3, "duplicate": 1, "ignored": 0, "failed": 2}
    assert count_outcomes(batch) == {"accepted": 3, "duplicate": 1, "ignored": 0, "failed": 2}


def test_a_body_that_is_no_json_object_is_empty() -> None:
    assert parse_response(b"\xff") == parse_response("[1]") == parse_response("Internal Server Error") == {}


def deliver(agent: bytes, body: bytes, path: str = "/webhooks/stripe") -> ResponseLog:
    """Send one request through the middleware to an app that responds 202 with this body."""
    log = ResponseLog()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 202})
        await send({"type": "http.response.body", "body": body})

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "path": path, "headers": [(b"user-agent", agent)]}
    asyncio.run(OtherSendersMiddleware(app, log)(scope, None, send))  # type: ignore[arg-type]
    return log


def test_acks_to_other_senders_are_recorded() -> None:
    assert deliver(b"curl", ack("accepted", "evt_1").encode()).other_senders == {("stripe", "evt_1")}
    batch = b'{"status": "accepted", "accepted": 2, "duplicate": 1, "ignored": 1, "failed": 0}'
    assert deliver(b"curl", batch).from_other_senders == 3


def test_acks_to_the_demos_senders_and_other_paths_are_not_recorded() -> None:
    body = ack("accepted", "evt_1").encode()
    assert deliver(b"oncehook-demo", body).from_other_senders == 0
    assert deliver(b"curl", body, "/api/events").from_other_senders == 0
