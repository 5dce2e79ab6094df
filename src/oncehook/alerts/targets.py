"""Alert targets: a signed webhook, a Slack-compatible webhook, a mail server, or a command.

A target accepts a message or raises. Errors and log lines name a host or a program, never the path of a URL, a user, a
password or an argument. Operators write the configuration, so targets may be on any network.
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


class AlertTarget(Protocol):
    """A destination for notifications."""

    name: str
    kind: str
    where: str  # the part of the address that holds no secret
    timeout: float

    async def send(self, message: Message) -> str:
        """Send a message and return a short summary of the response. Raises if the target did not accept it."""


class HttpTarget:
    """Sends a POST to a webhook or to Slack. Any 2xx response accepts the message."""

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

    async def send(self, message: Message) -> str:
        body, headers = self._request(message)
        response = await self._post(body, headers)
        raise_for_status(self.where, response.status, retry_after(response, self.clock.now()))
        return f"responded {response.status}"

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        return await self.http_client.send(self.url, body, headers, trusted=True, timeout=self.timeout)

    def _request(self, message: Message) -> tuple[bytes, dict[str, str]]:
        headers = {"User-Agent": "oncehook", "content-type": "application/json", "Idempotency-Key": message.id}
        if self.kind == "slack":
            return json.dumps({"text": _escape(message.text)}, ensure_ascii=False).encode(), headers
        body = message.as_json()
        return body, headers | signature_headers(message.id, body, self.secrets, self.clock.now())


def _escape(text: str) -> str:
    """Escape the three characters that Slack reads as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class CommandTarget:
    """Runs a program without a shell, with the alert as JSON on its standard input. Exit status 0 accepts it."""

    kind = "command"

    def __init__(self, name: str, settings: TargetSettings) -> None:
        self.name = name
        self.command = settings.command
        self.timeout = settings.timeout
        self.where = Path(settings.command[0]).name
        self.errors_to: int | None = asyncio.subprocess.DEVNULL  # None: to our own stderr, for `alerts test`

    async def send(self, message: Message) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self.errors_to,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SendFailed(f"{self.where} cannot be run: {reason}") from None
        try:
            async with asyncio.timeout(self.timeout):
                await process.communicate(message.as_json())
        except TimeoutError:
            raise SendFailed(f"{self.where} did not finish within {self.timeout:g} s") from None
        finally:
            if process.returncode is None:
                _kill_group(process)
                await process.wait()
        if process.returncode != 0:
            raise SendFailed(f"{self.where} exited with {process.returncode}")
        return "exited with 0"


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a command and the processes that it started, which are in the command's session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError, AttributeError):  # already gone, or Windows, which has no groups
        process.kill()


def make_targets(settings: AlertSettings, http_client: HttpClient, clock: Clock = SYSTEM) -> dict[str, AlertTarget]:
    """Make all configured targets. Raises ConfigurationError, which names the wrong key and shows no secret."""
    targets: dict[str, AlertTarget] = {}
    for name, target in settings.targets.items():
        if target.kind == "smtp":
            from oncehook.alerts.mail import MailTarget  # smtplib and email load 15 modules that most inboxes never use

            targets[name] = MailTarget(name, target)
        elif target.kind == "command":
            targets[name] = CommandTarget(name, target)
        else:
            targets[name] = HttpTarget(name, target, http_client, clock)
    return targets
