"""Every line about an event has its identifiers, and no line has a secret, a payload or a credential."""

import io
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.model.lease import Settled
from oncehook.model.states import State
from oncehook.observability import metrics, signals
from oncehook.testing import DeliveryResponse, deliver, post
from tests.support.events import github_headers, make_leased, stripe_body, stripe_headers
from tests.support.log_lines import EVERY_EVENT, EXPECTED, deliver_one_of_each, parse_lines
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio


async def test_every_line_about_an_event_has_its_identifiers(
    stripe_inbox: Inbox, log_to_stream: Callable[..., io.StringIO]
) -> None:
    stream = log_to_stream()
    async with stripe_inbox.lifespan():
        answers = await deliver_one_of_each(stripe_inbox)
    first, *lines, last = parse_lines(stream)
    assert (first["event"], last["event"]) == ("started", "stopped")
    for line, answer, (name, level, event_id, status) in zip(lines, answers, EXPECTED, strict=True):
        assert set(line) == EVERY_EVENT | {"event", "level", "timestamp"}
        assert (line["event"], line["level"], line["status"]) == (name, level, status)
        assert line["event_id"] == answer.json["event_id"] and (event_id is None or line["event_id"] == event_id)
        assert line["receipt"] == answer.json["receipt"]
        assert line["correlation_id"] == str(line["receipt"])
        assert line["source"] == "stripe"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["timestamp"])
    assert [line["object_id"] for line in lines] == ["in_1"] * 4 + [None]
    assert lines[3]["type"] == "charge.refunded"


async def test_correlation_id_is_the_configured_path_or_the_trace_or_the_receipt(
    make_inbox: Callable[..., Inbox], log_to_stream: Callable[..., io.StringIO]
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], correlation="request.id")
    stream = log_to_stream()
    async with inbox.lifespan():
        for body in (stripe_body("evt_1", request={"id": "req_1"}), stripe_body("evt_2")):
            await post(inbox, "stripe", body, {**stripe_headers(body), "traceparent": "00-abc-def-01"})
        await deliver(inbox, "stripe", stripe_body("evt_3"))
    lines = parse_lines(stream)[1:-1]
    assert [line["correlation_id"] for line in lines] == ["req_1", "00-abc-def-01", str(lines[2]["receipt"])]


async def test_log_level_leaves_out_lower_levels(
    stripe_inbox: Inbox, log_to_stream: Callable[..., io.StringIO]
) -> None:
    stream = log_to_stream(level="warning")
    async with stripe_inbox.lifespan():
        await deliver_one_of_each(stripe_inbox)
        await deliver(stripe_inbox, "stripe", stripe_body(), secret="wrong")
    assert [line["event"] for line in parse_lines(stream)] == ["body_changed", "unreadable", "rejected"]


CANARIES = {
    "secret": "whsec_CANARYsecret",
    "payload": "CANARYpayload",
    "authorization": "CANARYauthorization",
    "cookie": "CANARYcookie",
    "key": "CANARYkey",
    "forged": "whsec_CANARYforged",
}


def with_credentials(headers: dict[str, str]) -> dict[str, str]:
    return {
        **headers,
        "Authorization": f"Bearer {CANARIES['authorization']}",
        "Cookie": f"session={CANARIES['cookie']}",
        "X-Api-Key": CANARIES["key"],
    }


async def deliver_with_canaries(inbox: Inbox) -> list[DeliveryResponse]:
    """Send deliveries with all canaries, one for each possible response."""
    secret, now, answers = CANARIES["secret"], inbox._runtime.clock.now(), []

    async def send(
        body: bytes, signing: str = secret, at: float = now, source: str = "stripe", more: Mapping[str, str] = {}
    ) -> None:
        headers = with_credentials({**stripe_headers(body, signing, at), **more})
        answers.append(await post(inbox, source, body, headers))

    def with_payload(event_id: str, type_: str = "invoice.paid", **more: Any) -> bytes:
        return stripe_body(event_id, type_, note=CANARIES["payload"], **more)

    for body in (with_payload("1"), with_payload("1"), with_payload("1", changed=1), with_payload("2", "other")):
        await send(body)
    await send(json.dumps({"note": CANARIES["payload"]}).encode())
    await send(CANARIES["payload"].encode())
    await send(b'["' + CANARIES["payload"].encode())
    await send(with_payload("3"), CANARIES["forged"])
    await send(with_payload("3"), at=now - 9999)
    await send(with_payload("3"), source="unknown")
    await send(with_payload("3"), more={"Content-Type": f"multipart/{CANARIES['payload']}"})
    await send(with_payload("3"), more={"Content-Length": "9999999"})
    await send(with_payload("3"), more={"Stripe-Signature": CANARIES["forged"]})
    headers = {**github_headers(b"{}", "guid"), "X-Hub-Signature-256": CANARIES["forged"]}
    answers.append(await post(inbox, "github", b"{}", headers))
    await inbox._runtime.store.close()
    await send(with_payload("4"))
    await inbox._runtime.store.open()
    return answers


@pytest.mark.parametrize("format", ["json", "console", "standard"])
async def test_no_secret_payload_or_credential_is_logged_returned_or_stored_as_text(
    make_inbox: Callable[..., Inbox],
    log_to_stream: Callable[..., io.StringIO],
    caplog: pytest.LogCaptureFixture,
    database: str,
    format: str,
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    stream = io.StringIO() if format == "standard" else log_to_stream(format)
    inbox = make_inbox()
    inbox.source("stripe", secrets=[CANARIES["secret"]], types=["invoice.*"])
    inbox.source("github", secrets=[CANARIES["secret"]])
    async with inbox.lifespan():
        answers = await deliver_with_canaries(inbox)
    assert sorted({answer.status for answer in answers}) == [200, 202, 400, 401, 404, 413, 415, 503]
    logged = stream.getvalue() + "".join(str(record.__dict__) for record in caplog.records)
    assert "accepted" in logged and "rejected" in logged and "unavailable" in logged
    responses = "".join(f"{answer.headers} {answer.body!r}" for answer in answers)
    stored = text_columns(database)
    assert "content-type" in stored
    for kind, canary in CANARIES.items():
        assert canary not in logged, f"{kind} is in a log line"
        assert canary not in responses, f"{kind} is in a response"
        assert canary not in stored, f"{kind} is in a text column"
    for word in ("stripe-signature", "authorization", "cookie"):
        assert word not in stored.lower()


def text_columns(database: str) -> str:
    """Return everything that the inbox stores, except for the bodies."""
    tables = ("webhook_receipts", "webhook_payloads", "webhook_deliveries")
    values = [value for table in tables for row in run_sql(database, f"SELECT * FROM {table}") for value in row]
    return "\n".join(str(value) for value in values if not isinstance(value, bytes))


@pytest.mark.parametrize("provider", ["sendgrid", "standard-webhooks", "postmark"])
def test_error_about_an_unusable_secret_does_not_show_it(make_inbox: Callable[..., Inbox], provider: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        make_inbox().source(provider, secrets=["CANARY secret"])
    assert "CANARY" not in str(failure.value) and f"sources.{provider}" in str(failure.value)


# -- counting and logging, without an inbox -------------------------------------------------------------------------


def test_rejection_is_counted_and_logged(log_to_stream: Callable[..., io.StringIO]) -> None:
    stream, key = log_to_stream(), ("oncehook_rejected_total", "unknown", "test_reason")
    before = metrics.TALLY.counters[key]
    signals.record_rejection("unknown", "test_reason", "no such source")
    (line,) = parse_lines(stream)
    assert (line["event"], line["reason"], line["detail"]) == ("rejected", "test_reason", "no such source")
    assert metrics.TALLY.counters[key] == before + 1


@pytest.mark.parametrize("error", ["E: no account", "E: \x7f escaped"])
def test_attempt_names_its_consumer_unless_it_is_main(log_to_stream: Callable[..., io.StringIO], error: str) -> None:
    stream = log_to_stream()
    for consumer in ("main", "ledger"):
        leased = make_leased(consumer=consumer)
        settled = Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=1, error=error)
        signals.record_attempt(leased, settled, True)
        signals.record_noop(leased, "stale", "stripe", "invoice in_1")
    lines = parse_lines(stream)
    assert [(line["event"], line.get("consumer")) for line in lines] == [
        ("retrying", None), ("stale_event", None), ("retrying", "ledger"), ("stale_event", "ledger"),
    ]  # fmt: skip
    assert lines[0].keys() | {"consumer"} == lines[2].keys()


def test_background_failure_shows_the_class_and_place_of_an_error_and_not_its_text(
    log_to_stream: Callable[..., io.StringIO],
) -> None:
    stream = log_to_stream()
    try:
        raise ValueError("CANARY")
    except ValueError as error:
        signals.log_background_failure("test loop", error)
    (line,) = parse_lines(stream)
    assert (line["event"], line["loop"], line["error"]) == ("background_failed", "test loop", "ValueError")
    assert line["where"].startswith("test_signals.py:") and "CANARY" not in stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("http", "https://user:key@a.example:8443/path?token=1", "https://a.example:8443"),
        ("http", "http://a.example", "http://a.example"),
        ("function", "send_mail", "send_mail"),
    ],
)
def test_redacted_target_of_a_url_is_its_origin(kind: str, target: str, expected: str) -> None:
    assert signals.redacted_target(kind, target) == expected


def test_event_below_the_level_is_not_enabled(log_to_stream: Callable[..., io.StringIO]) -> None:
    log_to_stream(level="warning")
    assert signals.is_enabled("rejected") and not signals.is_enabled("accepted")
