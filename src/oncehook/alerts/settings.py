"""The keys under `[alerts]`: what is too much, for which source, and who is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from oncehook.config.configuration import SOURCE_NAME, named_tables, read_table
from oncehook.config.settings import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import Parse, duration, locators, one_of, positive, text, texts, whole_number

WINDOW = 300.0
"""Seconds over which refused deliveries are counted together."""


def or_off(parse: Parse) -> Parse:
    """As `parse`, or `false` or "off": this is not watched."""

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
    """What is too much: the keys under `[alerts]` for every source, under `[alerts.sources.NAME]` for one."""

    dead_letters: int | None = setting(0, or_off(whole_number), "More dead letters of a source than this.")
    lag: float | None = setting(
        300.0,
        or_off(positive(duration)),
        "The oldest unfinished event of a source, waiting or held by a worker, is older. Paused sources do not count.",
    )
    unhandled: int | None = setting(
        0, or_off(whole_number), "More events of a source had no handler in any process for 10 minutes."
    )
    paused: float | None = setting(
        86400.0, or_off(positive(duration)), "A source has been paused for longer, without an end."
    )
    rejections: int | None = setting(
        100,
        or_off(whole_number),
        "More deliveries to a source were refused within 5 minutes, in all processes together.",
    )
    silent: float | None = setting(
        None,
        or_off(positive(duration)),
        "A source that has received before gets nothing authentic for longer. Unset: not watched; how often events "
        "come is a source's own.",
    )
    effects: int | None = setting(0, or_off(whole_number), "More failed effects of a source's events than this.")
    retries: int | None = setting(
        75,
        or_off(percent),
        "So many percent of the provider's retry horizon have passed while everything is refused, or an inline event "
        "fails: then its provider will soon stop trying.",
    )


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Who is told: the keys under `[alerts.targets.NAME]`. One of `webhook`, `slack`, `smtp` and `command`."""

    webhook: str | None = setting(
        None, text, "An address that gets the alert as JSON, signed. `env:NAME`, `file:PATH` or the value."
    )
    secret: tuple[str, ...] = setting(
        (), locators, "Webhook: signs it (Standard Webhooks). `env:NAME`, `file:PATH` or the value; or several."
    )
    slack: str | None = setting(
        None,
        text,
        'An incoming webhook of Slack, or of who takes the same (`{"text": …}`). `env:NAME`, `file:PATH` or the value.',
    )
    smtp: str | None = setting(None, text, "A mail server, as `host` or `host:port`.")
    sender: str | None = setting(None, text, "Mail: whom it is from.")
    to: tuple[str, ...] = setting((), locators, "Mail: whom it goes to.")
    tls: str = setting(
        "starttls",
        one_of("starttls", "implicit", "none"),
        "Mail: `implicit` is TLS from the first byte, as port 465 has it; `none` only without a password.",
    )
    user: str | None = setting(None, text, "Mail: the user name. `env:NAME`, `file:PATH` or the value.")
    password: str | None = setting(None, text, "Mail: the password. `env:NAME`, `file:PATH` or the value.")
    command: tuple[str, ...] = setting(
        (), texts, "A program and its arguments, run without a shell; the alert is JSON on its standard input."
    )
    timeout: float = setting(10.0, positive(duration), "How long telling may take, as a whole.")

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if getattr(self, kind)), "")


KINDS: Mapping[str, tuple[str, ...]] = {
    "webhook": ("secret",),
    "slack": (),
    "smtp": ("sender", "to", "tls", "user", "password"),
    "command": (),
}
"""What a target may be, and the keys that belong to it alone."""


@dataclass(frozen=True, kw_only=True)
class AlertSettings(Thresholds):
    """The keys under `[alerts]` itself."""

    recover_after: float = setting(
        300.0, duration, "An incident is over once it was below its threshold for so long: one that flaps is told once."
    )
    remind: float | None = setting(
        None, or_off(positive(duration)), "An incident that stays open is told again, every so often. Unset: once."
    )
    every: float = setting(15.0, positive(duration), "How often the rules are looked at, by one process for all.")
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: Mapping[str, TargetSettings] = field(default_factory=dict)

    def of(self, source: str) -> Thresholds:
        """What holds for one source."""
        return replace(self, **self.sources.get(source, {}))


def read_alerts(given: Mapping[str, Any]) -> AlertSettings:
    """The table, checked. Raises ConfigurationError that names the wrong key, and shows no secret."""
    rest = {name: value for name, value in given.items() if name not in ("sources", "targets")}
    sources = named_tables(given.get("sources", {}), "alerts.sources")
    targets = named_tables(given.get("targets", {}), "alerts.targets")
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
        found = f"{' and '.join(kinds)} stand together" if kinds else "says not how to tell it"
        raise ConfigurationError(f"{where} {found}: give one of {', '.join(KINDS)}")
    for kind, keys in KINDS.items():
        foreign = [key for key in keys if key in values and kind != kinds[0]]
        if foreign:
            raise ConfigurationError(f"{where}.{foreign[0]} belongs to {kind}, and this is a {kinds[0]}")
    problem = _problem(where, kinds[0], target)
    if problem:
        raise ConfigurationError(problem)
    return target


def _problem(where: str, kind: str, target: TargetSettings) -> str | None:
    """Why it could never be told, or only unsafely."""
    if kind == "webhook" and not target.secret:
        return f"{where}.secret is missing: a webhook is always signed"
    if kind == "command" and not (target.command and target.command[0].strip()):
        return f"{where}.command is empty: name a program and its arguments"
    return _mail_problem(where, target) if kind == "smtp" else None


def _mail_problem(where: str, target: TargetSettings) -> str | None:
    for name in ("sender", "to"):
        if not getattr(target, name):
            return f"{where}.{name} is missing: a mail is from somebody and to somebody"
    if any("@" not in one or not one.isprintable() for one in (target.sender or "", *target.to)):
        return f"{where}: sender and to are addresses, such as ops@example.com"
    if (target.user is None) != (target.password is None):
        return f"{where}: user and password stand together, or not at all"
    if target.tls == "none" and target.password is not None:
        return f'{where}.tls is "none": the password would be sent in the clear; use starttls or implicit'
    return None
