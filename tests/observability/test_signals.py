"""Every line of an event carries what an incident needs, no line carries what it must not, and a line is one line."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncehook
from oncehook import ConfigurationError, Event, Inbox, Retry
from oncehook.observability import signals
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.testing import DeliveryResponse, advance, deliver, drain, post
from tests.support.events import Rows, github_headers, stripe_body, stripe_headers
from tests.support.servers import ask

pytestmark = pytest.mark.anyio

EVERY_EVENT = {"source", "provider", "event_id", "type", "object_id", "receipt", "status", "correlation_id"}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., io.StringIO]]:
    """Have lines written to a stream, as in a process of Oncehook's own; afterwards all is as before."""
    for name in ("_log", "_threshold", "_json_stream"):
        monkeypatch.setattr(signals, name, getattr(signals, name))

    def write(format: str = "json", level: str = "debug") -> io.StringIO:
        stream = io.StringIO()
        signals.configure(level, format, stream)
        return stream

    yield write


def parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def one_of_each(inbox: Inbox) -> list[DeliveryResponse]:
    """An event in each way that one can leave the door recorded."""
    bodies = [
        stripe_body("evt_1"),
        stripe_body("evt_1"),
        stripe_body("evt_1", changed=True),
        stripe_body("evt_2", "charge.refunded"),
        b'{"type": "invoice.paid"}',
    ]
    return [await deliver(inbox, "stripe", body) for body in bodies]


@pytest.fixture
def stripe_inbox(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], types=["invoice.*"])
    return inbox


EXPECTED = [
    ("accepted", "info", "evt_1", "received"),
    ("duplicate", "info", "evt_1", "received"),
    ("body_changed", "warning", "evt_1", "received"),
    ("ignored", "info", "evt_2", "ignored"),
    ("unreadable", "warning", None, "failed"),
]


async def test_every_line_of_an_event_carries_its_identifiers(
    stripe_inbox: Inbox, written: Callable[..., io.StringIO]
) -> None:
    stream = written()
    async with stripe_inbox.lifespan():
        answers = await one_of_each(stripe_inbox)
    first, *lines, last = parsed(stream)
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


async def test_in_another_app_the_same_fields_go_to_the_standard_logger(
    stripe_inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    async with stripe_inbox.lifespan():
        await one_of_each(stripe_inbox)
    records = [record for record in caplog.records if record.name == "oncehook"][1:-1]
    assert [(r.__dict__["event"], r.levelname.lower(), r.__dict__["status"]) for r in records] == [
        (name, level, status) for name, level, _, status in EXPECTED
    ]
    for record in records:
        assert set(record.__dict__) >= EVERY_EVENT


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_in_another_app_the_message_says_which_event_failed_and_why(
    make_inbox: Callable[..., Inbox], caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*", retry=Retry(attempts=2, first=60, most=60))
    async def handle(event: Event) -> None:
        raise KeyError("x")

    caplog.set_level(logging.WARNING, "oncehook")
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await drain(inbox)
        await advance(inbox, "2m")
        await drain(inbox)
        await deliver(inbox, "stripe", stripe_body("evt_2"), secret="whsec_wrong")
    first, last, refused = [record for record in caplog.records if record.name == "oncehook"]
    assert re.fullmatch(
        r"retrying stripe invoice\.paid evt_1 attempt 1: KeyError: 'x' \(test_signals\.py:\d+\)", first.getMessage()
    )
    assert last.getMessage().startswith(
        "dead_letter stripe invoice.paid evt_1 attempt 2: KeyError: 'x' (test_signals.py:"
    )
    assert (last.msg, last.__dict__["event"]) == ("dead_letter%s", "dead_letter")  # tools group by what does not change
    assert refused.getMessage().startswith("rejected stripe bad_signature: no signature in the request")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_in_another_app_what_a_sender_writes_stays_one_line(
    stripe_inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    async with stripe_inbox.lifespan():
        body = stripe_body("evt\n%s\x1b[2J", "invoice.%d\u202e")
        await post(stripe_inbox, "stripe", body, stripe_headers(body))
    messages = [record.getMessage() for record in caplog.records if record.name == "oncehook"]
    assert messages[1] == r"accepted stripe invoice.%d\u202e evt\n%s\x1b[2J"
    assert all(message.isprintable() for message in messages)


async def test_the_correlation_id_is_the_configured_path_else_the_trace_else_the_receipt(
    make_inbox: Callable[..., Inbox], written: Callable[..., io.StringIO]
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], correlation="request.id")
    stream = written()
    async with inbox.lifespan():
        for body in (stripe_body("evt_1", request={"id": "req_1"}), stripe_body("evt_2")):
            await post(inbox, "stripe", body, {**stripe_headers(body), "traceparent": "00-abc-def-01"})
        await deliver(inbox, "stripe", stripe_body("evt_3"))
    lines = parsed(stream)[1:-1]
    assert [line["correlation_id"] for line in lines] == ["req_1", "00-abc-def-01", str(lines[2]["receipt"])]


async def test_a_level_leaves_out_what_is_below_it(stripe_inbox: Inbox, written: Callable[..., io.StringIO]) -> None:
    stream = written(level="warning")
    async with stripe_inbox.lifespan():
        await one_of_each(stripe_inbox)
        await deliver(stripe_inbox, "stripe", stripe_body(), secret="wrong")
    assert [line["event"] for line in parsed(stream)] == ["body_changed", "unreadable", "rejected"]


def test_every_line_that_is_emitted_is_in_the_table_and_the_other_way_round() -> None:
    source = "\n".join(path.read_text("utf-8") for path in Path(oncehook.__file__).parent.rglob("*.py"))
    emitted = set(re.findall(r'emit\(\s*"(\w+)"', source))
    of_events = {"accepted", "duplicate", "body_changed", "ignored", "unreadable"}
    of_attempts = {"processed", "retrying", "dead_letter", "lease_lost"}
    of_effects = {
        "effect_conflict",
        "stale_event",
        "effect_done",
        "effect_retrying",
        "effect_failed",
        "effect_lease_lost",
    }
    of_alerts = {"alert_sent", "alert_retrying", "alert_failed"}
    of_the_log = {"log_lines_dropped"}
    assert emitted | of_events | of_attempts | of_effects | of_alerts | of_the_log == set(LOG_EVENTS)


# -- what must never be seen ----------------------------------------------------------------------------------------

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


async def go_every_way(inbox: Inbox) -> list[DeliveryResponse]:
    """Deliveries that carry every canary, through every way that one can end."""
    secret, now, answers = CANARIES["secret"], inbox._runtime.clock.now(), []

    async def send(body: bytes, signing: str = secret, at: float = now, source: str = "stripe", **more: str) -> None:
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
    await send(with_payload("3"), source="nobody")
    await send(with_payload("3"), **{"Content-Type": f"multipart/{CANARIES['payload']}"})
    await send(with_payload("3"), **{"Content-Length": "9999999"})
    await send(with_payload("3"), **{"Stripe-Signature": CANARIES["forged"]})
    headers = {**github_headers(b"{}", "guid"), "X-Hub-Signature-256": CANARIES["forged"]}
    answers.append(await post(inbox, "github", b"{}", headers))
    await inbox._runtime.store.close()
    await send(with_payload("4"))
    await inbox._runtime.store.open()
    return answers


@pytest.mark.parametrize("format", ["json", "console", "standard"])
async def test_no_secret_payload_or_credential_is_in_any_line_answer_or_text_column(
    make_inbox: Callable[..., Inbox],
    written: Callable[..., io.StringIO],
    caplog: pytest.LogCaptureFixture,
    database: str,
    format: str,
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    stream = io.StringIO() if format == "standard" else written(format)
    inbox = make_inbox()
    inbox.source("stripe", secrets=[CANARIES["secret"]], types=["invoice.*"])
    inbox.source("github", secrets=[CANARIES["secret"]])
    async with inbox.lifespan():
        answers = await go_every_way(inbox)
    assert sorted({answer.status for answer in answers}) == [200, 202, 400, 401, 404, 413, 415, 503]
    logged = stream.getvalue() + "".join(str(record.__dict__) for record in caplog.records)
    assert "accepted" in logged and "rejected" in logged and "unavailable" in logged
    told = "".join(f"{answer.headers} {answer.body!r}" for answer in answers)
    kept = text_columns(database)
    assert "content-type" in kept
    for kind, canary in CANARIES.items():
        assert canary not in logged, f"{kind} is in a log line"
        assert canary not in told, f"{kind} is in an answer"
        assert canary not in kept, f"{kind} is in a text column"
    for word in ("stripe-signature", "authorization", "cookie"):
        assert word not in kept.lower()


def text_columns(database: str) -> str:
    """Everything that the inbox keeps, but for the bodies."""
    tables = ("webhook_receipts", "webhook_payloads", "webhook_deliveries")
    found = [value for table in tables for row in ask(database, f"SELECT * FROM {table}") for value in row]
    return "\n".join(str(value) for value in found if not isinstance(value, bytes))


@pytest.mark.parametrize("provider", ["sendgrid", "standard-webhooks", "postmark"])
def test_a_secret_that_cannot_be_used_is_not_told(make_inbox: Callable[..., Inbox], provider: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        make_inbox().source(provider, secrets=["CANARY secret"])
    assert "CANARY" not in str(failure.value) and f"sources.{provider}" in str(failure.value)


# -- one line is one line -------------------------------------------------------------------------------------------

HOSTILE = {
    "an escape": "\x1b[2J\x1b]0;owned\x07",
    "a line break": 'x\r\n{"event":"accepted","source":"forged"}\n',
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg",
    "bidi": "\u202egnp.exe\u2066\u200f",
    "C1": "\x9b31m\x90",
    "delete": "a\x7f\x08",
    "invisible": "\u200b\ufeff\U000e0041",
}


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_what_a_sender_writes_stays_one_escaped_line(
    stripe_inbox: Inbox, written: Callable[..., io.StringIO], format: str, hostile: str
) -> None:
    stream = written(format)
    body = stripe_body(f"evt{hostile}", f"invoice.{hostile}", data={"object": {"id": hostile}})
    async with stripe_inbox.lifespan():
        await post(stripe_inbox, "stripe", body, {**stripe_headers(body), "traceparent": "00-\x1b[2J"})
        await post(stripe_inbox, f"no{hostile}body", body, stripe_headers(body))
    started, accepted, rejected, stopped, rest = stream.getvalue().split("\n")
    assert rest == ""
    for line, name in ((started, "started"), (accepted, "accepted"), (rejected, "rejected"), (stopped, "stopped")):
        assert name in line
        assert line.isprintable(), repr(line)
    if format == "json":
        assert json.loads(accepted)["source"] == "stripe"
        assert json.loads(rejected)["source"] == "unknown"


# -- a log that cannot be written -----------------------------------------------------------------------------------


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("format", ["json", "console"])
async def test_a_log_that_cannot_be_written_changes_no_answer(
    stripe_inbox: Inbox, written: Callable[..., io.StringIO], rows: Rows, format: str
) -> None:
    written(format)
    async with stripe_inbox.lifespan():
        signals.configure("debug", format, FullDisk())
        answers = await one_of_each(stripe_inbox)
        answers.append(await deliver(stripe_inbox, "stripe", stripe_body(), secret="wrong"))
        answers.append(await post(stripe_inbox, "nobody", b"", {}))
        await stripe_inbox._runtime.store.close()
        answers.append(await deliver(stripe_inbox, "stripe", stripe_body("evt_9")))
        await stripe_inbox._runtime.store.open()
        written(format)
    assert [answer.status for answer in answers] == [202, 200, 200, 200, 202, 401, 404, 503]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(3,)]
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(2,)]


def test_the_driver_writes_no_traceback_into_the_log_of_a_service() -> None:
    """Its pool does so again and again while the database is away."""
    code = (
        "import logging; from oncehook.observability import signals; signals.configure('info', 'json'); "
        "logging.getLogger('asyncpg.pool').warning('no database', exc_info=ValueError()); signals.emit('stopped')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["stopped"]
