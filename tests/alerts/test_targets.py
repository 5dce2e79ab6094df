"""Every kind of target against a real one: what it gets, what is said when it fails, and nothing that is secret."""

import asyncio
import json
import ssl
import sys
from collections.abc import Callable
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from oncehook import Inbox
from oncehook.alerts import read_alerts
from oncehook.alerts.message import Message, make_test_message
from oncehook.alerts.targets import AlertTarget, make_targets
from oncehook.http_client.client import HttpClient
from oncehook.model.errors import ConfigurationError
from oncehook.testing import advance, deliver
from tests.support.alerts import SECRET, MailBox, configured, look, mail_server
from tests.support.events import Rows, stripe_body
from tests.support.http_target import receiving, said, stall_after
from tests.support.tls_server import issue, pem
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

OPENED = Message(
    id="0af1-opened",
    word="opened",
    rule="dead_letters",
    source="stripe",
    summary="Dead letters of stripe: 2, more than <0>.",
    remedy="See `oncehook dead`.",
    at="2026-11-16T03:00:00.000000Z",
    value=2.0,
    threshold=0.0,
    incident=7,
    opened_at="2026-11-16T03:00:00.000000Z",
    recovered_at=None,
    link="https://hooks.example.com/dead",
)


def target(**settings: Any) -> AlertTarget:
    return make_targets(read_alerts({"targets": {"ops": settings}}), HttpClient())["ops"]


async def failure(one: AlertTarget, message: Message = OPENED) -> str:
    with pytest.raises(Exception) as raised:
        await one.send(message)
    return str(raised.value)


# -- webhook and Slack ----------------------------------------------------------------------------------------------


async def test_a_webhook_gets_the_alert_as_json_which_the_standards_own_library_verifies() -> None:
    async with receiving() as receiver:
        assert await target(webhook=receiver.url, secret=SECRET).send(OPENED) == "responded 200"
    (request,) = receiver.requests
    assert request.line.startswith("POST /hooks?token=")
    body: dict[str, Any] = Webhook(SECRET).verify(request.body, request.headers)
    assert (body["type"], body["timestamp"]) == ("alert.opened", "2026-11-16T03:00:00.000000Z")
    assert body["data"] == {
        "id": "0af1-opened", "word": "opened", "incident": 7, "rule": "dead_letters", "source": "stripe",
        "summary": OPENED.summary, "remedy": OPENED.remedy, "value": 2.0, "threshold": 0.0,
        "opened_at": OPENED.opened_at, "recovered_at": None, "link": "https://hooks.example.com/dead",
    }  # fmt: skip
    assert request.headers["webhook-id"] == request.headers["idempotency-key"] == "0af1-opened"


async def test_both_secrets_of_a_rotation_sign() -> None:
    other = "whsec_bm90IHRoZSBzYW1lIGFzIHRoZSBvdGhlciBvbmU="
    async with receiving() as receiver:
        await target(webhook=receiver.url, secret=[SECRET, other]).send(OPENED)
    (request,) = receiver.requests
    for secret in (SECRET, other):
        Webhook(secret).verify(request.body, request.headers)


async def test_slack_gets_a_text_in_which_nothing_is_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver:
        monkeypatch.setenv("SLACK_URL", receiver.url)
        assert await target(slack="env:SLACK_URL").send(OPENED) == "responded 200"
    (request,) = receiver.requests
    assert request.headers["content-type"] == "application/json" and "webhook-signature" not in request.headers
    assert json.loads(request.body) == {
        "text": "Alert: dead_letters (stripe). Dead letters of stripe: 2, more than &lt;0&gt;.\n"
        "See `oncehook dead`.\nhttps://hooks.example.com/dead"
    }


@pytest.mark.parametrize("kind", ["webhook", "slack"])
async def test_an_address_that_fails_is_named_by_its_host_alone(kind: str) -> None:
    more = {"secret": SECRET} if kind == "webhook" else {}
    async with receiving(said(404), said(302), stall_after()) as receiver:
        one = target(timeout="300ms", **{kind: receiver.url}, **more)
        where = f"http://127.0.0.1:{receiver.port}"
        assert await failure(one) == f"{where} answered 404"
        assert (await failure(one)).startswith(f"{where} answered 302: redirects are not followed")
        assert await failure(one) == f"{where} did not answer within 0.3 s"
    assert (await failure(one)).startswith(f"{where} cannot be reached")
    assert "hidden-in-the-query" not in one.where


# -- mail -----------------------------------------------------------------------------------------------------------


def mail(port: int, **more: Any) -> AlertTarget:
    return target(
        smtp=f"localhost:{port}", sender="oncehook@example.com", to=["ops@example.com", "eva@example.com"], **more
    )


async def test_a_mail_goes_to_everybody_with_an_id_that_stays() -> None:
    box = MailBox(refuses="eva@example.com")
    async with mail_server(box) as port:
        one = mail(port, tls="none")
        assert await one.send(OPENED) == "accepted it for 1 of 2"
        box.refuses = ""
        assert await one.send(OPENED) == "accepted it for 2 of 2"
    first, second = box.mails
    assert (first.mail_from, second.rcpt_tos) == ("oncehook@example.com", ["ops@example.com", "eva@example.com"])
    mails = [message_from_bytes(bytes(one.content or b""), policy=default) for one in box.mails]
    assert mails[0]["Subject"] == "[oncehook] Alert: dead_letters (stripe)"
    assert mails[0]["Message-ID"] == mails[1]["Message-ID"] == "<0af1-opened@oncehook.invalid>"
    assert (mails[0]["To"], mails[0]["Auto-Submitted"]) == ("ops@example.com, eva@example.com", "auto-generated")
    paragraphs = mails[0].get_content().replace("\r\n", "\n").rstrip().split("\n\n")
    assert paragraphs == [OPENED.summary, OPENED.remedy, "https://hooks.example.com/dead"]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server of `localhost` speaks TLS with; its authority is trusted in this test."""
    root = issue("tests of oncehook")
    (tmp_path / "root.pem").write_bytes(pem(root[0]))
    (tmp_path / "server.pem").write_bytes(pem(*issue("localhost", root)))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "root.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context


async def test_with_starttls_one_signs_in_and_the_secret_is_never_said(
    authority: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = MailBox()
    monkeypatch.setenv("MAIL_USER", "the-user")
    monkeypatch.setenv("MAIL_PASSWORD", "right-password")
    options = {"tls_context": authority, "auth_required": True, "authenticator": box.authenticate}
    async with mail_server(box, **options) as port:
        one = mail(port, user="env:MAIL_USER", password="env:MAIL_PASSWORD")
        assert await one.send(OPENED) == "accepted it for 2 of 2"
        assert set(box.logins) == {(b"the-user", b"right-password")}
        monkeypatch.setenv("MAIL_PASSWORD", "wrong-password")
        told = await failure(mail(port, user="env:MAIL_USER", password="env:MAIL_PASSWORD"))
        assert told == f"localhost:{port} rejected the user name or password (535)"


async def test_a_mail_server_that_is_not_who_it_says_gets_no_password(
    authority: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = MailBox()
    async with mail_server(box, tls_context=authority, authenticator=box.authenticate) as port:
        monkeypatch.delenv("SSL_CERT_FILE")
        told = await failure(mail(port, user="u", password="right-password"))
        assert told.startswith(f"localhost:{port} has no valid certificate")
        assert box.logins == []
    async with mail_server(MailBox()) as port:
        told = await failure(mail(port))
        assert told.startswith(f"localhost:{port} supports no STARTTLS")


async def test_what_a_mail_server_refuses_is_said_in_its_number() -> None:
    async with mail_server(MailBox(refuses="ops@example.com")) as port:
        one = target(smtp=f"127.0.0.1:{port}", sender="a@example.com", to="ops@example.com", tls="none")
        assert await failure(one) == f"127.0.0.1:{port} rejected every recipient (550)"
    assert (await failure(one)).startswith(f"127.0.0.1:{port} cannot be reached")
    async with receiving(stall_after()) as silent:
        one = target(smtp=f"127.0.0.1:{silent.port}", sender="a@b.c", to="d@e.f", tls="none", timeout="300ms")
        assert await failure(one) == f"127.0.0.1:{silent.port} did not accept it within 0.3 s"


# -- command --------------------------------------------------------------------------------------------------------


async def test_a_command_gets_the_alert_on_its_standard_input_and_no_shell_is_between(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + '\\n' + sys.stdin.read())"
    command = [sys.executable, "-c", script, str(tmp_path / "got"), "$HOME; `id`"]
    assert await target(command=command).send(OPENED) == "exited with 0"
    first, _, body = (tmp_path / "got").read_text().partition("\n")
    assert first == "$HOME; `id`"
    assert json.loads(body)["data"]["summary"] == OPENED.summary


async def test_a_command_that_fails_hangs_or_is_not_there_is_named_without_its_arguments(tmp_path: Path) -> None:
    python = Path(sys.executable).name
    one = target(command=[sys.executable, "-c", "import sys; sys.exit(3)", "token-of-the-pager"])
    assert await failure(one) == f"{python} exited with 3"
    assert (await failure(target(command=["/no/such/program"]))) == "program cannot be run: No such file or directory"
    script = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1], "w") as file:
    print(child.pid, file=file)
time.sleep(600)
"""
    hangs = target(command=[sys.executable, "-c", script, str(tmp_path / "child")], timeout="1s")
    assert await failure(hangs) == f"{python} did not finish within 1 s"
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: not is_running(child))


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_a_command_that_reads_nothing_and_ends_well_was_told() -> None:
    assert await target(command=["true"]).send(make_test_message("x-test", OPENED.at)) == "exited with 0"


# -- settings -------------------------------------------------------------------------------------------------------

MAIL = {"smtp": "mail.example.com", "sender": "a@example.com", "to": "b@example.com"}


@pytest.mark.parametrize(
    ("alerts", "sentence"),
    [
        ({"lagg": "5m"}, "alerts.lagg is not a setting: did you mean alerts.lag?"),
        ({"lag": "soon"}, "alerts.lag is 'soon': expected a duration such as"),
        ({"lag": "0s"}, "alerts.lag is '0s': expected more than 0, or \"off\""),
        ({"retries": 100}, "alerts.retries is 100: expected a percentage from 1 to 99"),
        ({"dead_letters": -1}, "alerts.dead_letters is -1: expected a whole number"),
        ({"sources": {"shop": {"every": "1s"}}}, "alerts.sources.shop.every is not a setting"),
        ({"sources": "all"}, "alerts.sources must contain tables"),
        ({"targets": {"Ops!": {"slack": "x"}}}, "alerts.targets.Ops!: use lower-case letters"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(alerts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_alerts(alerts)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "alerts.targets.ops does not say how to send alerts: set exactly one of webhook, slack, smtp, command"),
        ({"slack": "https://x", "smtp": "y"}, "alerts.targets.ops has both slack and smtp"),
        ({"webhook": "https://x"}, "alerts.targets.ops.secret is missing: webhook targets must be signed"),
        ({"slack": "https://x", "to": "y"}, "alerts.targets.ops.to is for smtp targets, but this is a slack target"),
        ({"command": []}, "alerts.targets.ops.command is empty: name a program"),
        ({"command": "page ops"}, "alerts.targets.ops.command is not usable: expected a list of strings"),
        ({"smtp": "mail.example.com", "to": "x@y.z"}, "alerts.targets.ops.sender is missing"),
        (MAIL | {"to": "nobody"}, "sender and to must be email addresses"),
        (MAIL | {"to": "a@b\r\nBcc: c@d"}, "sender and to must be email addresses"),
        (MAIL | {"user": "x"}, "set both user and password"),
        (MAIL | {"user": "x", "password": "p-secret", "tls": "none"}, "would be sent unencrypted"),
        (MAIL | {"smtp": "mail.example.com:smtp"}, "expected a mail server, such as"),
        (MAIL | {"timeout": "0s"}, "alerts.targets.ops.timeout is '0s': expected more than 0"),
        ({"slack": "env:NOT_SET_ANYWHERE"}, "set NOT_SET_ANYWHERE in the environment or in .env, or remove the target"),
        ({"slack": "ftp://p-secret@x"}, "alerts.targets.ops.slack is not usable: expected an address"),
        ({"slack": 7}, "alerts.targets.ops.slack is not usable: expected a string"),
        ({"webhook": "https://x", "secret": "p-secret"}, "alerts.targets.ops.secret cannot sign"),
    ],
)
def test_a_target_that_could_not_be_told_is_refused_and_its_secrets_are_not_shown(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        target(**given)
    assert sentence in str(raised.value) and "p-secret" not in str(raised.value)


async def test_thresholds_for_a_source_that_is_not_there_are_refused_at_start(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox(config=configured(sources={"strip": {"silent": "1h"}}))
    inbox.source("stripe", secrets=["whsec_test"])
    with pytest.raises(ConfigurationError, match=r"alerts\.sources\.strip: there is no such source; known are stripe"):
        await inbox.start()


def test_an_off_is_understood_in_both_ways_and_a_source_may_have_its_own() -> None:
    settings = read_alerts({"lag": False, "effects": "off", "sources": {"shop": {"lag": "1h", "retries": "off"}}})
    assert (settings.lag, settings.effects, settings.retries) == (None, None, 75)
    assert (settings.of("shop").lag, settings.of("shop").retries, settings.of("stripe").lag) == (3600.0, None, None)


# -- nothing that is secret -----------------------------------------------------------------------------------------


async def test_no_secret_is_in_any_line_or_row_when_every_target_fails(
    make_inbox: Callable[..., Inbox], rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "oncehook")
    secrets = ("path-of-slack", "p-secret", "u-secret", SECRET, "token-of-the-pager")
    async with receiving(said(500, body=b"p-secret")) as receiver, receiving(b"220 x\r\n", said(200)) as mailer:
        at = f"http://127.0.0.1:{receiver.port}/path-of-slack"
        targets = {
            "hook": {"webhook": at, "secret": SECRET},
            "chat": {"slack": at},
            "mail": {"smtp": f"127.0.0.1:{mailer.port}", "sender": "a@b.c", "to": "d@e.f", "user": "u-secret",
                     "password": "p-secret", "timeout": "500ms"},
            "page": {"command": ["false", "token-of-the-pager"]},
        }  # fmt: skip
        inbox = make_inbox(config=configured(targets=targets))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await advance(inbox, "10m")
            await look(inbox)
            assert await inbox._runtime.alerts.send_due() == 4
    untold = [record for record in caplog.records if vars(record).get("event") == "alert_retrying"]
    assert len(untold) == 4
    told = " ".join(str(record.__dict__) for record in caplog.records)
    told += str(rows("SELECT last_error FROM webhook_alerts")) + str(rows("SELECT summary FROM webhook_incidents"))
    assert [secret for secret in secrets if secret in told] == []


async def test_telling_goes_on_beside_the_watch_and_ends_with_a_stop(make_inbox: Callable[..., Inbox]) -> None:
    async with receiving(stall_after()) as stuck, receiving() as well:
        targets = {"stuck": {"slack": stuck.url}, "well": {"slack": well.url}}
        inbox = make_inbox(config=configured(every="50ms", targets=targets, recover_after="1h"))
        inbox.source("stripe", secrets=["whsec_test"])
        async with inbox.lifespan():
            await deliver(inbox, "stripe", stripe_body("evt_1"))
            await advance(inbox, "10m")
            inbox._runtime.alerts.start()
            await eventually(lambda: bool(stuck.requests) and bool(well.requests))
            async with asyncio.timeout(5):
                await inbox._runtime.alerts.stop()
        assert len(well.requests) == 1
