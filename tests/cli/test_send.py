"""`send` with an own payload, fields, id and port, and without anybody who listens; `stats --watch`; `show`."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.model.states import State
from tests.cli.test_work import on_store
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.serve import ONCEHOOK, Process, process, write_config

ONLY_IN_CODE = """
from oncehook import Inbox

inbox = Inbox("sqlite:///code.db", worker=False)
inbox.source("shop", provider="stripe", secrets=["whsec_code"])
inbox.source("plain", provider="stripe", verify="none")
"""


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture
def served(in_folder: Path, database: str, run: Run) -> Iterator[Process]:
    config = write_config(in_folder, database)
    with process(config, "--no-worker") as running:
        yield running


def payload_of(run: Run, name: str) -> dict[str, object]:
    payload: dict[str, object] = run("show", name, "--json").lines[0]["payload"]
    return payload


def test_fields_and_id_of_the_event_can_be_set(run: Run, served: Process) -> None:
    fields = ["data.object.metadata.user=7", "data.object.customer=cus_1", "data.object.lines=[1, 2]", "livemode=false"]
    options = [option for field in fields for option in ("--set", field)]
    sent = run("send", "stripe", "invoice.paid", "--port", str(served.port), "--id", "evt_mine", *options)
    assert sent.code == 0 and "accepted" in sent.out
    payload = payload_of(run, "evt_mine")
    thing = payload["data"]["object"]  # type: ignore[index]
    assert (thing["metadata"]["user"], thing["customer"], thing["lines"]) == (7, "cus_1", [1, 2])
    assert payload["livemode"] is False
    again = run("send", "stripe", "invoice.paid", "--port", str(served.port), "--id", "evt_mine", *options)
    assert again.code == 0 and "duplicate" in again.out


def test_own_body_is_sent_byte_for_byte(run: Run, served: Process, in_folder: Path) -> None:
    body = b'{ "id": "evt_file", "type": "invoice.paid", "data": {"object": {"id": "in_7"}} }'
    (in_folder / "body.json").write_bytes(body)
    assert run("send", "stripe", "invoice.paid", "--data", "body.json", "--port", str(served.port)).code == 0
    assert run("show", "evt_file", "--raw").out.encode() == body
    command = [str(ONCEHOOK), "send", "stripe", "invoice.paid", "--data", "-", "--port", str(served.port)]
    piped = subprocess.run(command, input=body.replace(b"evt_file", b"evt_pipe"), capture_output=True, check=False)
    assert piped.returncode == 0, piped.stderr
    assert run("show", "evt_pipe").code == 0


def test_sources_of_an_app_are_signed_for(run: Run, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_folder / "shop.py").write_text(ONLY_IN_CODE)
    config = in_folder / "oncehook.toml"
    config.write_text('app = "shop:inbox"\n')
    with process(config, cwd=in_folder) as running:
        port = str(running.port)
        assert run("send", "shop", "invoice.paid", "--port", port).code == 0
        assert run("send", "plain", "invoice.paid", "--port", port).code == 0  # unsigned, and needs no secret
        config.write_text("")
        assert run("send", "shop", "invoice.paid", "--port", port).code == 2  # nothing knows such a source
        assert run("send", "shop", "invoice.paid", "--port", port, "--app", "shop:inbox").code == 0
        assert len(run("events", "--app", "shop:inbox", "--json").lines) == 3


def test_where_nothing_listens_the_address_is_named(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran = run("send", "stripe", "invoice.paid", "--port", str(port))
    assert ran.code == 1 and f"no response from http://127.0.0.1:{port}" in ran.error and "--to" in ran.error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "9", "--to", "http://127.0.0.1:9/x"], "--port and --to cannot be combined"),
        (["--id", "evt_1", "--count", "2"], "--id needs --count 1"),
        (["--set", "nothing"], "is not PATH=VALUE"),
        (["--set", "id.deeper=1"], "'id.deeper' cannot be set"),
        (["--data", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_bad_use_is_a_sentence(run: Run, in_folder: Path, database: str, options: list[str], sentence: str) -> None:
    write_config(in_folder, database)
    ran = run("send", "stripe", "invoice.paid", *options)
    assert ran.code == 2 and sentence in ran.error


def test_secret_that_cannot_sign_is_told_by_what_is_expected(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database)
    shared = run("send", "standard-webhooks", "invoice.paid", "--secret", "whsec_!")
    assert shared.code == 2 and "cannot sign for " in shared.error
    assert "expected: " in shared.error and "--secret file:key.pem" not in shared.error
    asymmetric = run("send", "sendgrid", "delivered", "--secret", "guessed")
    assert asymmetric.code == 2 and "signs with a private key: name it with --secret file:key.pem" in asymmetric.error


def test_watched_stats_end_with_ctrl_c(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> None:
    write_config(in_folder, database)
    on_store(make_inbox, make_claim("evt_1"))
    command = [str(ONCEHOOK), "stats", "--watch", "--every", "50ms"]
    for options in (["--json"], []):
        running = subprocess.Popen(
            [*command, *options],
            cwd=in_folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        try:
            assert running.stdout is not None
            lines = [running.stdout.readline() for _ in range(3)]
            running.send_signal(signal.SIGINT)
            _, error = running.communicate(timeout=20)
        finally:
            running.kill()
        assert (running.returncode, error) == (0, "")
        if options:
            looks = [json.loads(line) for line in lines]
            assert [look["sources"][0]["received"] for look in looks] == [1, 1, 1]
            assert looks[0]["at"] < looks[2]["at"]
        else:
            assert "Ctrl-C stops it" in lines[0] and "stripe" in lines[2]


def test_show_has_the_traceback_and_knows_an_object(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox]
) -> None:
    write_config(in_folder, database)
    on_store(
        make_inbox,
        make_claim("evt_1", object_id="in_668621"),
        status=State.FAILED,
        outcome="failed",
        error="KeyError: 'customer'",
        traceback="hooks.py:40 in paid\nshop.py:7 in find",
    )
    shown = run("show", "evt_1").out
    assert "Traceback of attempt 1:\n  hooks.py:40 in paid\n  shop.py:7 in find\n  KeyError: 'customer'\n" in shown
    ran = run("show", "in_668621")
    assert ran.code == 1 and "`oncehook events --object in_668621`" in ran.error
    assert "--object" not in run("show", "in_0").error


def test_field_of_a_payload_that_is_not_json_and_an_empty_id_are_usage_errors(run: Run, in_folder: Path) -> None:
    write_config(in_folder, f"sqlite:///{in_folder}/inbox.db")
    (in_folder / "body.txt").write_text("not JSON")
    field = run("send", "stripe", "invoice.paid", "--data", "body.txt", "--set", "a=1")
    assert field.code == 2 and "'a' cannot be set: the payload is not JSON" in field.error
    empty = run("send", "stripe", "invoice.paid", "--id", "")
    assert empty.code == 2 and "--id is empty" in empty.error


@pytest.mark.parametrize(
    "words", [("stats", "--watch", "--every", "0s"), ("replay", "--failed", "--wait", "--timeout", "0")]
)
def test_waiting_for_no_time_is_a_usage_error(words: tuple[str, ...], run: Run, in_folder: Path) -> None:
    write_config(in_folder, f"sqlite:///{in_folder}/inbox.db")
    refused = run(*words)
    assert refused.code == 2 and "expected more than 0" in refused.error
