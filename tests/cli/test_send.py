"""`oncehook send`: the body, its fields and id, the key, the address, and errors."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Run
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


def test_fields_and_the_id_of_the_event_can_be_set(run: Run, served: Process) -> None:
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


def test_a_body_from_a_file_is_sent_byte_for_byte(run: Run, served: Process, in_folder: Path) -> None:
    body = b'{ "id": "evt_file", "type": "invoice.paid", "data": {"object": {"id": "in_7"}} }'
    (in_folder / "body.json").write_bytes(body)
    assert run("send", "stripe", "invoice.paid", "--data", "body.json", "--port", str(served.port)).code == 0
    assert run("show", "evt_file", "--raw").out.encode() == body
    command = [str(ONCEHOOK), "send", "stripe", "invoice.paid", "--data", "-", "--port", str(served.port)]
    piped = subprocess.run(command, input=body.replace(b"evt_file", b"evt_pipe"), capture_output=True, check=False)
    assert piped.returncode == 0, piped.stderr
    assert run("show", "evt_pipe").code == 0


def test_events_are_signed_for_the_sources_of_an_app(
    run: Run, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_without_a_response_the_address_is_named(run: Run, in_folder: Path, database: str) -> None:
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
def test_bad_usage_is_reported_in_one_sentence(
    run: Run, in_folder: Path, database: str, options: list[str], sentence: str
) -> None:
    write_config(in_folder, database)
    ran = run("send", "stripe", "invoice.paid", *options)
    assert ran.code == 2 and sentence in ran.error


def test_a_secret_that_cannot_sign_is_reported_with_the_expected_one(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database)
    shared = run("send", "standard-webhooks", "invoice.paid", "--secret", "whsec_!")
    assert shared.code == 2 and "cannot sign for " in shared.error
    assert "expected: " in shared.error and "--secret file:key.pem" not in shared.error
    asymmetric = run("send", "sendgrid", "delivered", "--secret", "guessed")
    assert asymmetric.code == 2 and "signs with a private key: pass it with --secret file:key.pem" in asymmetric.error


def test_provider_of_several_sources_is_not_enough_to_name_one(run: Run, in_folder: Path) -> None:
    sources = "".join(f'[sources.{name}]\nprovider = "stripe"\nsecrets = ["whsec_{name}"]\n' for name in ("a", "b"))
    (in_folder / "oncehook.toml").write_text(sources)
    ran = run("send", "stripe", "invoice.paid")
    assert (ran.code, ran.out) == (2, "") and "2 sources use stripe: name one of them (a, b)" in ran.error


def test_a_field_of_a_body_that_is_not_json_and_an_empty_id_are_usage_errors(run: Run, in_folder: Path) -> None:
    write_config(in_folder, f"sqlite:///{in_folder}/inbox.db")
    (in_folder / "body.txt").write_text("not JSON")
    field = run("send", "stripe", "invoice.paid", "--data", "body.txt", "--set", "a=1")
    assert field.code == 2 and "'a' cannot be set: the payload is not JSON" in field.error
    empty = run("send", "stripe", "invoice.paid", "--id", "")
    assert empty.code == 2 and "--id is empty" in empty.error


WITH_TENANTS = """
from oncehook import Inbox

inbox = Inbox("sqlite:///code.db", worker=False)
inbox.source("stripe", secrets_for={"acme": ["whsec_acme"]}.get)
"""


def test_tenant_gets_an_event_signed_with_the_secret_that_the_app_looks_up(run: Run, in_folder: Path) -> None:
    (in_folder / "hooks.py").write_text(WITH_TENANTS)
    (in_folder / "oncehook.toml").write_text("")
    with process(in_folder / "oncehook.toml", app="hooks:inbox", cwd=in_folder) as service:
        assert "/webhooks/stripe/TENANT" in (service.process.stdout.readline() if service.process.stdout else "")
        to = ("--port", str(service.port), "--app", "hooks:inbox")
        sent = run("send", "stripe", "invoice.paid", *to, "--tenant", "acme", "--id", "evt_1")
        assert sent.code == 0 and "202" in sent.out
        sent = run("send", "stripe", "invoice.paid", *to, "--tenant", "acme", "--secret", "whsec_wrong")
        assert sent.code == 1 and "401" in sent.out
        sent = run("send", "stripe", "invoice.paid", *to, "--tenant", "nobody")
        assert sent.code == 2 and "secrets_for returns no secret for the tenant nobody" in sent.error
        sent = run("send", "stripe", "invoice.paid", *to, "--tenant", "a/b")
        assert sent.code == 2 and "is not a tenant" in sent.error
        listed = run("events", "--tenant", "acme", "--json", "--app", "hooks:inbox")
        assert [(line["tenant"], line["event_id"]) for line in listed.lines] == [("acme", "evt_1")]
