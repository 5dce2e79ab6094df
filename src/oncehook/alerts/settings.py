"""The settings under `[alerts]`: thresholds for all sources and for single ones, and the targets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from oncehook.config.configuration import SOURCE_NAME, named_tables, read_table
from oncehook.config.setting import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import Parse, duration, locators, one_of, positive, text, texts, whole_number

WINDOW = 300.0
"""Seconds over which the rule `rejections` counts."""


def or_off(parse: Parse) -> Parse:
    """Like `parse`, but `false` and "off" turn the rule off."""

    @wraps(parse)
    def read(value: Any) -> Any:
        try:
            return None if value is False or value == "off" else parse(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "off"') from None

    return read


def percent(value: Any) -> int:
    number = whole_number(value)
    if not 1 <= number <= 99:
        raise ValueError("expected a percentage from 1 to 99")
    return number


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The thresholds: under `[alerts]` for every source, under `[alerts.sources.NAME]` for one."""

    dead_letters: int | None = setting(
        0, or_off(whole_number), "Alert if a source has more than this many dead letters."
    )
    lag: float | None = setting(
        300.0,
        or_off(positive(duration)),
        "Alert if the oldest unfinished event of a source, waiting or leased, is older than this. Paused sources "
        "and consumers do not count.",
    )
    unhandled: int | None = setting(
        0,
        or_off(whole_number),
        "Alert if more than this many events of a source have had no handler in any process for 10 minutes.",
    )
    paused: float | None = setting(
        86400.0, or_off(positive(duration)), "Alert if a source or a consumer has been paused for longer than this."
    )
    rejections: int | None = setting(
        100,
        or_off(whole_number),
        "Alert if all processes together reject more deliveries to a source within 5 minutes.",
    )
    silent: float | None = setting(
        None,
        or_off(positive(duration)),
        "Alert if a source that has received events gets no authentic delivery for longer. Off unless set, because "
        "sources differ in how often they deliver.",
    )
    effects: int | None = setting(
        0, or_off(whole_number), "Alert if events of a source have more than this many failed effects."
    )
    retries: int | None = setting(
        75,
        or_off(percent),
        "Alert if every delivery is rejected, or an inline event fails, for this percentage of the time for which the "
        "provider retries: it will soon stop.",
    )


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """An alert target under `[alerts.targets.NAME]`: exactly one of `webhook`, `slack`, `smtp` and `command`."""

    webhook: str | None = setting(
        None, text, "A URL that gets the alert as signed JSON. `env:NAME`, `file:PATH` or the value."
    )
    secret: tuple[str, ...] = setting(
        (),
        locators,
        "Webhook: signs the alert (Standard Webhooks). `env:NAME`, `file:PATH` or the value, or a list of them.",
    )
    slack: str | None = setting(
        None,
        text,
        'The URL of a Slack incoming webhook, or of a service that accepts `{"text": …}`. `env:NAME`, `file:PATH` or '
        "the value.",
    )
    smtp: str | None = setting(None, text, "A mail server, as `host` or `host:port`.")
    sender: str | None = setting(None, text, "Mail: the sender's address.")
    to: tuple[str, ...] = setting((), locators, "Mail: the recipients' addresses.")
    tls: str = setting(
        "starttls",
        one_of("starttls", "implicit", "none"),
        "Mail: `implicit` is TLS from the first byte, as on port 465. `none` is allowed only without a password.",
    )
    user: str | None = setting(None, text, "Mail: the user name. `env:NAME`, `file:PATH` or the value.")
    password: str | None = setting(None, text, "Mail: the password. `env:NAME`, `file:PATH` or the value.")
    command: tuple[str, ...] = setting(
        (), texts, "A program and its arguments, run without a shell. It gets the alert as JSON on standard input."
    )
    timeout: float = setting(10.0, positive(duration), "The time limit for sending one notification.")

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if getattr(self, kind)), "")


KINDS: Mapping[str, tuple[str, ...]] = {
    "webhook": ("secret",),
    "slack": (),
    "smtp": ("sender", "to", "tls", "user", "password"),
    "command": (),
}
"""Kind of target → the keys that only this kind has."""


@dataclass(frozen=True, kw_only=True)
class AlertSettings(Thresholds):
    """All settings under `[alerts]`."""

    recover_after: float = setting(
        300.0,
        duration,
        "An incident recovers after its value has been below the threshold for this long. A value that "
        "flaps alerts once.",
    )
    remind: float | None = setting(
        None,
        or_off(positive(duration)),
        "Send a reminder at this interval while an incident stays open. Off unless set.",
    )
    every: float = setting(15.0, positive(duration), "How often one process evaluates the rules for all.")
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: Mapping[str, TargetSettings] = field(default_factory=dict)

    def of(self, source: str) -> Thresholds:
        """Return the thresholds of one source."""
        return replace(self, **self.sources.get(source, {}))


def read_alerts(table: Mapping[str, Any]) -> AlertSettings:
    """Parse the `[alerts]` table. Raises ConfigurationError, which names the wrong key and shows no secret."""
    rest = {name: value for name, value in table.items() if name not in ("sources", "targets")}
    sources = named_tables(table.get("sources", {}), "alerts.sources")
    targets = named_tables(table.get("targets", {}), "alerts.targets")
    return AlertSettings(
        **read_table(AlertSettings, rest, "alerts."),
        sources={name: read_table(Thresholds, values, f"alerts.sources.{name}.") for name, values in sources.items()},
        targets={name: _target(name, values) for name, values in targets.items()},
    )


def _target(name: str, values: Mapping[str, Any]) -> TargetSettings:
    where = f"alerts.targets.{name}"
    if not SOURCE_NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: use lower-case letters, digits, - and _ for its name (at most 63)")
    target = TargetSettings(**read_table(TargetSettings, values, f"{where}."))
    kinds = [kind for kind in KINDS if kind in values]
    if len(kinds) != 1:
        problem = f"has both {' and '.join(kinds)}" if kinds else "does not say how to send alerts"
        raise ConfigurationError(f"{where} {problem}: set exactly one of {', '.join(KINDS)}")
    for kind, keys in KINDS.items():
        foreign = [key for key in keys if key in values and kind != kinds[0]]
        if foreign:
            raise ConfigurationError(f"{where}.{foreign[0]} is for {kind} targets, but this is a {kinds[0]} target")
    error = _target_error(where, kinds[0], target)
    if error:
        raise ConfigurationError(error)
    return target


def _target_error(where: str, kind: str, target: TargetSettings) -> str | None:
    """Return why a target can never work, or only unsafely."""
    if kind == "webhook" and not target.secret:
        return f"{where}.secret is missing: webhook targets must be signed"
    if kind == "command" and not (target.command and target.command[0].strip()):
        return f"{where}.command is empty: name a program and its arguments"
    return _mail_error(where, target) if kind == "smtp" else None


def _mail_error(where: str, target: TargetSettings) -> str | None:
    for name in ("sender", "to"):
        if not getattr(target, name):
            return f"{where}.{name} is missing: a mail needs a sender and recipients"
    if any("@" not in address or not address.isprintable() for address in (target.sender or "", *target.to)):
        return f"{where}: sender and to must be email addresses, such as ops@example.com"
    if (target.user is None) != (target.password is None):
        return f"{where}: set both user and password, or neither"
    if target.tls == "none" and target.password is not None:
        return f'{where}.tls is "none": the password would be sent unencrypted; use starttls or implicit'
    return None
