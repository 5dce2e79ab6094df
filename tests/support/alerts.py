"""An inbox with alert rules and targets, time that passes between checks, and a mail server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from oncehook import Inbox
from oncehook.config.configuration import Configuration
from oncehook.config.settings import Settings
from oncehook.model.incident import IncidentChanges, OpenedIncident, RecoveredIncident
from oncehook.testing import advance

SECRET = "whsec_YWxlcnRzIGFyZSBzaWduZWQgYnkgdGhpcyBvbmU="


def configured(**alerts: Any) -> Configuration:
    """A configuration with these alerts; rules are looked at every ten seconds."""
    return Configuration(settings=Settings(), sources={}, providers={}, alerts={"every": "10s", **alerts})


async def look(inbox: Inbox, after: Any = "30s") -> IncidentChanges:
    """Let time pass, and have a turn."""
    await advance(inbox, after)
    done = await inbox._runtime.alerts.evaluate_rules()
    assert done is not None, "it was another's turn"
    return done


def names(rows: Sequence[OpenedIncident | RecoveredIncident]) -> list[tuple[str, str]]:
    return [(row.rule, row.source) for row in rows]


class MailBox:
    """The handler of a mail server. It keeps each mail, and rejects one recipient."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.mails: list[Envelope] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == self.refuses:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 taken"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right-password", handled=False)


@asynccontextmanager
async def mail_server(box: MailBox, **options: Any) -> AsyncIterator[int]:
    """The port of a mail server in this loop."""
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(box, **options), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
