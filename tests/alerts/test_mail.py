"""The mail target, against a real mail server."""

import ssl
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from oncehook.alerts.targets import AlertTarget
from tests.support.alerts import (
    OPENED,
    MailBox,
    failure_of,
    mail_server,
    make_target,
)
from tests.support.http_target import receiving, stall_after
from tests.support.tls_server import issue, pem

pytestmark = pytest.mark.anyio


def make_mail_target(port: int, **more: Any) -> AlertTarget:
    return make_target(
        smtp=f"localhost:{port}", sender="oncehook@example.com", to=["ops@example.com", "eva@example.com"], **more
    )


async def test_mail_goes_to_all_recipients_with_the_same_message_id_at_each_attempt() -> None:
    box = MailBox(rejects="eva@example.com")
    async with mail_server(box) as port:
        target = make_mail_target(port, tls="none")
        assert await target.send(OPENED) == "accepted it for 1 of 2 recipients"
        box.rejects = ""
        assert await target.send(OPENED) == "accepted it for 2 of 2 recipients"
    first, second = box.mails
    assert (first.mail_from, second.rcpt_tos) == ("oncehook@example.com", ["ops@example.com", "eva@example.com"])
    mails = [message_from_bytes(mail.content, policy=default) for mail in box.mails if isinstance(mail.content, bytes)]
    assert mails[0]["Subject"] == "[oncehook] Alert: dead_letters (stripe)"
    assert mails[0]["Message-ID"] == mails[1]["Message-ID"] == "<0af1-opened@oncehook.invalid>"
    assert (mails[0]["To"], mails[0]["Auto-Submitted"]) == ("ops@example.com, eva@example.com", "auto-generated")
    paragraphs = mails[0].get_content().replace("\r\n", "\n").rstrip().split("\n\n")
    assert paragraphs == [OPENED.summary, OPENED.remedy, "https://hooks.example.com/dead"]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The TLS context of a server of `localhost`. This test trusts its certificate authority."""
    root = issue("tests of oncehook")
    (tmp_path / "root.pem").write_bytes(pem(root[0]))
    (tmp_path / "server.pem").write_bytes(pem(*issue("localhost", root)))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "root.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context


async def test_mail_target_logs_in_after_starttls_and_errors_hide_the_password(
    authority: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = MailBox()
    monkeypatch.setenv("MAIL_USER", "the-user")
    monkeypatch.setenv("MAIL_PASSWORD", "right-password")
    options = {"tls_context": authority, "auth_required": True, "authenticator": box.authenticate}
    async with mail_server(box, **options) as port:
        target = make_mail_target(port, user="env:MAIL_USER", password="env:MAIL_PASSWORD")
        assert await target.send(OPENED) == "accepted it for 2 of 2 recipients"
        assert set(box.logins) == {(b"the-user", b"right-password")}
        monkeypatch.setenv("MAIL_PASSWORD", "wrong-password")
        error = await failure_of(make_mail_target(port, user="env:MAIL_USER", password="env:MAIL_PASSWORD"))
        assert error == f"localhost:{port} rejected the user name or password (535)"


async def test_mail_server_without_a_valid_certificate_gets_no_password(
    authority: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = MailBox()
    async with mail_server(box, tls_context=authority, authenticator=box.authenticate) as port:
        monkeypatch.delenv("SSL_CERT_FILE")
        error = await failure_of(make_mail_target(port, user="u", password="right-password"))
        assert error.startswith(f"localhost:{port} has no valid certificate")
        assert box.logins == []
    async with mail_server(MailBox()) as port:
        error = await failure_of(make_mail_target(port))
        assert error.startswith(f"localhost:{port} does not support STARTTLS")


async def test_error_of_a_mail_server_shows_its_code_and_not_its_text() -> None:
    async with mail_server(MailBox(rejects="ops@example.com")) as port:
        target = make_target(smtp=f"127.0.0.1:{port}", sender="a@example.com", to="ops@example.com", tls="none")
        assert await failure_of(target) == f"127.0.0.1:{port} rejected every recipient (550)"
    assert (await failure_of(target)).startswith(f"127.0.0.1:{port} cannot be reached")
    async with receiving(stall_after()) as silent:
        target = make_target(smtp=f"127.0.0.1:{silent.port}", sender="a@b.c", to="d@e.f", tls="none", timeout="300ms")
        assert await failure_of(target) == f"127.0.0.1:{silent.port} did not accept it within 0.3 s"
