"""An inbox with alert rules and targets, time that passes between checks, and a mail server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from oncehook import Inbox
from oncehook.alerts import read_alerts
from oncehook.alerts.message import Message
from oncehook.alerts.targets import AlertTarget, make_targets
from oncehook.config.configuration import Configuration
from oncehook.config.settings import Settings
from oncehook.http_client.client import HttpClient
from oncehook.model.incident import IncidentChanges, OpenedIncident, RecoveredIncident
from oncehook.testing import advance, deliver
from tests.support.events import stripe_body

INCIDENTS = "SELECT rule, source, recovered_at IS NOT NULL FROM webhook_incidents ORDER BY id"
ALERTS = "SELECT target, word, status, attempts FROM webhook_alerts ORDER BY id"
SECRET = "whsec_YWxlcnRzIGFyZSBzaWduZWQgYnkgdGhpcyBvbmU="


def configured(**alerts: Any) -> Configuration:
    """Return a configuration with these alerts and an evaluation every ten seconds."""
    return Configuration(settings=Settings(), sources={}, providers={}, alerts={"every": "10s", **alerts})


async def evaluate_after(inbox: Inbox, after: Any = "30s") -> IncidentChanges:
    """Let time pass, then evaluate the rules."""
    await advance(inbox, after)
    changes = await inbox._runtime.alerts.evaluate_rules()
    assert changes is not None, "this process must become the leader"
    return changes


def make_alert_inbox(make_inbox: Callable[..., Inbox], **alerts: Any) -> Inbox:
    """Make an inbox with the source stripe and these alert settings."""
    inbox = make_inbox(config=configured(**alerts))
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def send_forged(inbox: Inbox, times: int = 1, source: str = "stripe") -> None:
    """Send deliveries with a wrong signature, and write their number to the database."""
    for _ in range(times):
        response = await deliver(inbox, source, stripe_body("evt_forged"), secret="whsec_another")
        assert response.status == 401, "a forged delivery must be rejected"
    await inbox._runtime.reception.rejection_counts.write()


def names(rows: Sequence[OpenedIncident | RecoveredIncident]) -> list[tuple[str, str]]:
    return [(row.rule, row.source) for row in rows]


class MailBox:
    """The handler of a mail server. It keeps each mail, and rejects one recipient."""

    def __init__(self, rejects: str = "") -> None:
        self.rejects = rejects
        self.mails: list[Envelope] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == self.rejects:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 accepted"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right-password", handled=False)


@asynccontextmanager
async def mail_server(box: MailBox, **options: Any) -> AsyncIterator[int]:
    """Run a mail server in this event loop, and yield its port."""
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(box, **options), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


OPENED = Message(
    id="0af1-opened",
    word="opened",
    rule="dead_letters",
    source="stripe",
    summary="stripe has dead letters: 2, more than <0>.",
    remedy="Run `oncehook dead`.",
    at="2026-11-16T03:00:00.000000Z",
    value=2.0,
    threshold=0.0,
    incident=7,
    opened_at="2026-11-16T03:00:00.000000Z",
    recovered_at=None,
    link="https://hooks.example.com/dead",
)
"""The notification of a new incident."""


def make_target(**settings: Any) -> AlertTarget:
    """Make the alert target "ops" from its settings."""
    return make_targets(read_alerts({"targets": {"ops": settings}}), HttpClient())["ops"]


async def failure_of(target: AlertTarget, message: Message = OPENED) -> str:
    """Send a message that the target does not accept, and return the error."""
    with pytest.raises(Exception) as raised:
        await target.send(message)
    return str(raised.value)
