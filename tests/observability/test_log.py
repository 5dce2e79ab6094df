"""Log lines are written as JSON, for a terminal or through the standard logger, one printable line each."""

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Event, Inbox, Retry
from oncehook.observability import signals
from oncehook.observability.log import JsonLog, NonBlockingStream, standard_error
from oncehook.testing import advance, deliver, drain, post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.log_lines import EVERY_EVENT, EXPECTED, deliver_one_of_each

pytestmark = pytest.mark.anyio


async def test_mounted_inbox_logs_the_same_fields_to_the_standard_logger(
    stripe_inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    async with stripe_inbox.lifespan():
        await deliver_one_of_each(stripe_inbox)
    records = [record for record in caplog.records if record.name == "oncehook"][1:-1]
    assert [(r.__dict__["event"], r.levelname.lower(), r.__dict__["status"]) for r in records] == [
        (name, level, status) for name, level, _, status in EXPECTED
    ]
    for record in records:
        assert set(record.__dict__) >= EVERY_EVENT


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_message_of_a_mounted_inbox_names_the_event_and_the_error(
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
    first, last, rejected = [record for record in caplog.records if record.name == "oncehook"]
    assert re.fullmatch(
        r"retrying stripe invoice\.paid evt_1 attempt 1: KeyError: 'x' \(test_log\.py:\d+\)", first.getMessage()
    )
    assert last.getMessage().startswith("dead_letter stripe invoice.paid evt_1 attempt 2: KeyError: 'x' (test_log.py:")
    assert (last.msg, last.__dict__["event"]) == ("dead_letter%s", "dead_letter")  # tools group by the constant part
    assert rejected.getMessage().startswith("rejected stripe bad_signature: no signature in the request")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_message_of_a_mounted_inbox_is_one_printable_line(
    stripe_inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncehook")
    async with stripe_inbox.lifespan():
        body = stripe_body("evt\n%s\x1b[2J", "invoice.%d\u202e")
        await post(stripe_inbox, "stripe", body, stripe_headers(body))
    messages = [record.getMessage() for record in caplog.records if record.name == "oncehook"]
    assert messages[1] == r"accepted stripe invoice.%d\u202e evt\n%s\x1b[2J"
    assert all(message.isprintable() for message in messages)


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
async def test_text_of_a_sender_stays_one_escaped_line(
    stripe_inbox: Inbox, log_to_stream: Callable[..., io.StringIO], format: str, hostile: str
) -> None:
    stream = log_to_stream(format)
    body = stripe_body(f"evt{hostile}", f"invoice.{hostile}", data={"object": {"id": hostile}})
    async with stripe_inbox.lifespan():
        await post(stripe_inbox, "stripe", body, {**stripe_headers(body), "traceparent": "00-\x1b[2J"})
        await post(stripe_inbox, f"un{hostile}known", body, stripe_headers(body))
    started, accepted, rejected, stopped, rest = stream.getvalue().split("\n")
    assert rest == ""
    for line, name in ((started, "started"), (accepted, "accepted"), (rejected, "rejected"), (stopped, "stopped")):
        assert name in line
        assert line.isprintable(), repr(line)
    if format == "json":
        assert json.loads(accepted)["source"] == "stripe"
        assert json.loads(rejected)["source"] == "unknown"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("format", ["json", "console"])
async def test_log_that_cannot_be_written_changes_no_response(
    stripe_inbox: Inbox, log_to_stream: Callable[..., io.StringIO], rows: Rows, format: str
) -> None:
    log_to_stream(format)
    async with stripe_inbox.lifespan():
        signals.configure("debug", format, FullDisk())
        answers = await deliver_one_of_each(stripe_inbox)
        answers.append(await deliver(stripe_inbox, "stripe", stripe_body(), secret="wrong"))
        answers.append(await post(stripe_inbox, "unknown", b"", {}))
        await stripe_inbox._runtime.store.close()
        answers.append(await deliver(stripe_inbox, "stripe", stripe_body("evt_9")))
        await stripe_inbox._runtime.store.open()
        log_to_stream(format)
    assert [answer.status for answer in answers] == [202, 200, 200, 200, 202, 401, 404, 503]
    assert rows("SELECT count(*) FROM webhook_receipts") == [(3,)]
    assert rows("SELECT count(*) FROM webhook_deliveries") == [(2,)]


def test_database_driver_writes_no_traceback_to_the_log_of_a_service() -> None:
    """The pool of asyncpg logs tracebacks while the database is down."""
    code = (
        "import logging; from oncehook.observability import signals; signals.configure('info', 'json'); "
        "logging.getLogger('asyncpg.pool').warning('no database', exc_info=ValueError()); signals.emit('stopped')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["stopped"]


def test_pipe_that_is_not_read_drops_lines_and_the_next_line_says_how_many() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe, os.fdopen(reader, "rb", buffering=0) as log:
        stream = NonBlockingStream(pipe)
        while not stream.dropped:
            stream.write("x" * 4000 + "\n")
        stream.write("dropped too\n")
        while len(log.read(65536)) == 65536:
            pass  # the reader catches up
        stream.write("written again\n")
        first, second = log.read(65536).decode().splitlines()[-2:]
    assert json.loads(first) == {"event": "log_lines_dropped", "count": 2, "level": "warning"}
    assert second == "written again"


def test_file_is_written_without_dropping_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        stream = NonBlockingStream(file)
        for _ in range(100):
            stream.write("x" * 10_000 + "\n")
    assert (tmp_path / "log").stat().st_size == 100 * 10_001 and stream.dropped == 0


def test_standard_error_without_a_file_descriptor_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert standard_error() is stream


def test_json_line_has_its_fields_event_level_and_time() -> None:
    stream = io.StringIO()
    JsonLog(stream).warning("rejected", source="stripe", detail="a\nb")
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line.pop("timestamp"))
    assert line == {"event": "rejected", "level": "warning", "source": "stripe", "detail": "a\\nb"}
