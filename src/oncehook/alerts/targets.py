"""Who is told, and how: a signed webhook, a Slack-compatible address, a mail server, or a command.

A target either takes a message or raises; what is said of it names a host or a program, never an address' path, a user,
a password or an argument. The file is the operator's own, so a target in it may be anywhere.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from oncehook.alerts.message import Message
from oncehook.alerts.settings import AlertSettings, TargetSettings
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.secret import resolve
from oncehook.handlers.forward import resolve_secrets, signature_headers
from oncehook.http_client.client import HttpClient, parse_url
from oncehook.http_client.exchange import Response
from oncehook.http_client.outcome import raise_for_status, retry_after
from oncehook.model.errors import ConfigurationError, SendFailed


class Target(Protocol):
    """Somebody who is told."""

    name: str
    kind: str
    where: str  # as much of the address as may be shown
    timeout: float

    async def tell(self, message: Message) -> str:
        """Return what it answered, in a word or two. Raises if it did not take the message."""


class Http:
    """A webhook or Slack: one POST, and 2xx is told."""

    def __init__(self, name: str, settings: TargetSettings, http_client: HttpClient, clock: Clock) -> None:
        self.name = name
        self.kind = settings.kind
        self.timeout = settings.timeout
        self.http_client = http_client
        self.clock = clock
        where = f"alerts.targets.{name}"
        self.url = resolve(settings.webhook or settings.slack or "", f"{where}.{self.kind}", "target")
        try:
            self.where = parse_url(self.url).origin
        except ValueError as error:
            raise ConfigurationError(f"{where}.{self.kind} is not usable: {error}") from None
        self.secrets = resolve_secrets(settings.secret, f"{where}.secret", "target")

    async def tell(self, message: Message) -> str:
        body, headers = self._request(message)
        answer = await self._post(body, headers)
        raise_for_status(self.where, answer.status, retry_after(answer, self.clock.now()))
        return f"answered {answer.status}"

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        return await self.http_client.send(self.url, body, headers, trusted=True, timeout=self.timeout)

    def _request(self, message: Message) -> tuple[bytes, dict[str, str]]:
        headers = {"User-Agent": "oncehook", "content-type": "application/json", "Idempotency-Key": message.id}
        if self.kind == "slack":
            return json.dumps({"text": _escaped(message.text)}, ensure_ascii=False).encode(), headers
        body = message.as_json()
        return body, headers | signature_headers(message.id, body, self.secrets, self.clock.now())


def _escaped(text: str) -> str:
    """For Slack, in whose texts these three would be markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Command:
    """A program: the alert is JSON on its standard input, no shell is between, and 0 is told."""

    kind = "command"

    def __init__(self, name: str, settings: TargetSettings) -> None:
        self.name = name
        self.command = settings.command
        self.timeout = settings.timeout
        self.where = Path(settings.command[0]).name
        self.errors_to: int | None = asyncio.subprocess.DEVNULL  # None: where ours go, for a person who tests it

    async def tell(self, message: Message) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self.errors_to,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            raise SendFailed(f"{self.where} cannot be run: {said}") from None
        try:
            async with asyncio.timeout(self.timeout):
                await process.communicate(message.as_json())
        except TimeoutError:
            raise SendFailed(f"{self.where} did not end within {self.timeout:g} s") from None
        finally:
            if process.returncode is None:
                _end(process)
                await process.wait()
        if process.returncode != 0:
            raise SendFailed(f"{self.where} exited with {process.returncode}")
        return "exited with 0"


def _end(process: asyncio.subprocess.Process) -> None:
    """It and what it has started: it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError, AttributeError):  # gone by now; or Windows, which has no groups
        process.kill()


def make_targets(settings: AlertSettings, http_client: HttpClient, clock: Clock = SYSTEM) -> dict[str, Target]:
    """Every target of the configuration. Raises ConfigurationError that names the wrong key, and shows no secret."""
    made: dict[str, Target] = {}
    for name, one in settings.targets.items():
        if one.kind == "smtp":
            from oncehook.alerts.mail import Mail  # smtplib and email are 15 modules that most inboxes never use

            made[name] = Mail(name, one)
        elif one.kind == "command":
            made[name] = Command(name, one)
        else:
            made[name] = Http(name, one, http_client, clock)
    return made
