"""Reads and checks the configuration: `oncehook.toml`, and environment variables that override it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.config.settings import Settings, SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.nearest import nearest
from oncehook.model.retry import Retry, with_fields

if TYPE_CHECKING:
    from oncehook.config.shard_settings import ShardSettings

DEFAULT_FILE = "oncehook.toml"
SOURCE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def read_table(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parse `values` by the fields of `cls`. Raises ConfigurationError with the full name of a wrong or unknown key."""
    table = {f.name: f for f in fields(cls)}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in table:
            closest = nearest(name, table)
            hint = f"did you mean {where}{closest}?" if closest else f"the settings are {', '.join(table)}"
            raise ConfigurationError(f"{where}{name} is not a setting: {hint}")
        try:
            parsed[name] = table[name].metadata["parse"](value)
        except ValueError as error:
            key = name.upper() if where == "ONCEHOOK_" else name
            raise ConfigurationError(f"{where}{key} is {_printable(name, value)}: {error}") from None
    return parsed


_SECRET = (
    "secrets",
    "keys",
    "database",
    "effect_targets",
    "metrics_token",
    "forward",
    "forward_secret",
    "verify_token",
    "public_url",
    "intake",
    "password",
    "token",
    "session_key",
    "webhook",
    "secret",
    "slack",
    "user",
    "command",
)


def check_settable(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if code sets what only the operator may set."""
    if "effect_targets" in settings:
        raise ConfigurationError(
            "Inbox: effect_targets cannot be set in code: write it in oncehook.toml, or set ONCEHOOK_EFFECT_TARGETS"
        )


def _printable(name: str, value: Any) -> str:
    return "not usable" if name in _SECRET else repr(value)


def read_source(name: str, values: Mapping[str, Any]) -> SourceSettings:
    if not SOURCE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"sources.{name}: the name is part of the URL; use up to 63 lower-case letters, digits, - and _"
        )
    return SourceSettings(**read_table(SourceSettings, values, f"sources.{name}."))


def read_consumer(name: str, values: Mapping[str, Any]) -> ConsumerSettings:
    check_consumer_name(name, f"consumers.{name}")
    if name == MAIN:
        raise ConfigurationError(
            f"consumers.{MAIN}: {MAIN} is the consumer of handlers without a consumer's name. It has the settings of "
            "the inbox and its sources; use another name"
        )
    return ConsumerSettings(**read_table(ConsumerSettings, values, f"consumers.{name}."))


def read_shard(name: str, values: Mapping[str, Any]) -> "ShardSettings":
    from oncehook.config.shard_settings import ShardSettings  # only an inbox with shards needs it

    if not SOURCE_NAME.fullmatch(name):
        raise ConfigurationError(f"shards.{name}: use up to 63 lower-case letters, digits, - and _ for the name")
    return ShardSettings(**read_table(ShardSettings, values, f"shards.{name}."))


def check_consumer_name(name: Any, where: str) -> None:
    """Raise ConfigurationError unless `name` can be the name of a consumer."""
    if not isinstance(name, str) or not SOURCE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where}: {name!r} is not a name of a consumer; use up to 63 lower-case letters, digits, - and _, and "
            f"begin with a letter or digit"
        )


def consumer_retry(settings: ConsumerSettings, where: str) -> dict[str, Any]:
    """Return the fields of the retry policy that a consumer sets with `retry` and `max_attempts`."""
    return _retry_fields(settings, where)


def retry_of(settings: SourceSettings, where: str) -> dict[str, Any]:
    """Return the fields of the retry policy that a source sets with `retry` and `max_attempts`."""
    if settings.retry is not None and settings.mode == "inline":
        raise ConfigurationError(
            f'{where}.retry needs mode = "queued": an inline event is retried when its provider delivers it again. '
            f"Use max_attempts instead"
        )
    if settings.on_failure != "retry" and settings.mode != "inline":
        raise ConfigurationError(
            f'{where}.on_failure needs mode = "inline": to try a queued event only once, use max_attempts = 1'
        )
    return _retry_fields(settings, where)


def _retry_fields(settings: SourceSettings | ConsumerSettings, where: str) -> dict[str, Any]:
    fields = dict(settings.retry or {})
    if settings.max_attempts is not None:
        if "attempts" in fields:
            raise ConfigurationError(f"{where}: max_attempts and retry.attempts set the same value: remove one of them")
        fields["attempts"] = settings.max_attempts
    with_fields(Retry(), fields, f"{where}.retry")
    return fields


@dataclass(frozen=True, kw_only=True, repr=False)  # some values are secrets
class Configuration:
    """The parsed file and environment. Secrets are still references."""

    settings: Settings
    sources: Mapping[str, SourceSettings]
    providers: Mapping[str, Mapping[str, Any]]
    file: Path | None = None
    dashboard: Mapping[str, Any] = field(default_factory=dict)  # parsed by the dashboard
    alerts: Mapping[str, Any] = field(default_factory=dict)  # parsed by the alert monitor
    consumers: Mapping[str, ConsumerSettings] = field(default_factory=dict)
    shards: "Mapping[str, ShardSettings]" = field(default_factory=dict)  # besides `main`


def load(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Configuration:
    """Read the file (`path`, else ONCEHOOK_CONFIG, else oncehook.toml if it exists), then the environment."""
    environ = os.environ if environ is None else environ
    path = path or environ.get("ONCEHOOK_CONFIG")
    file = Path(path or DEFAULT_FILE)
    is_named = bool(path or file.is_file())
    return parse(read_file(file) if is_named else {}, environ, file if is_named else None)


def parse(tables: dict[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Configuration:
    """Check the tables of a configuration, and apply the environment, which overrides them."""
    sources = named_tables(tables.pop("sources", {}), "sources")
    consumers = named_tables(tables.pop("consumers", {}), "consumers")
    shards = named_tables(tables.pop("shards", {}), "shards")
    providers = named_tables(tables.pop("providers", {}), "providers")
    dashboard, alerts = (named_tables({name: tables.pop(name, {})}, name)[name] for name in ("dashboard", "alerts"))
    values = read_table(Settings, tables, "")
    values |= read_table(Settings, _from_environment(environ), "ONCEHOOK_")
    return Configuration(
        settings=Settings(**values),
        sources={name: read_source(name, source) for name, source in sources.items()},
        consumers={name: read_consumer(name, consumer) for name, consumer in consumers.items()},
        shards={name: read_shard(name, shard) for name, shard in shards.items()},
        providers=providers,
        file=file,
        dashboard=dashboard,
        alerts=alerts,
    )


def read_file(file: Path) -> dict[str, Any]:
    """Return the tables of a file, unchecked."""
    import tomllib  # not needed by an inbox that is configured in code

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{file} does not exist: `oncehook init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None


def named_tables(value: Any, name: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ConfigurationError(f"{name} must contain tables, such as [{name}.stripe]")
    check_names(value, f"{name} has")
    return value


def check_names(value: Mapping[Any, Any], where: str) -> None:
    """Raise ConfigurationError for a key that is not text: a dict in code may have any, such as a lazy translation."""
    wrong = next((key for key in value if not isinstance(key, str)), None)
    if wrong is not None:
        raise ConfigurationError(f"{where} a key of the type {type(wrong).__name__}: names must be plain text (str)")


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f.name: f for f in fields(Settings)}
    values = {key[len("ONCEHOOK_") :].lower(): value for key, value in environ.items() if key.startswith("ONCEHOOK_")}
    lists = {name for name in values if name in known and isinstance(known[name].default, tuple)}
    return {name: _split_list(value) if name in lists else value for name, value in values.items() if name in known}


def _split_list(value: str) -> list[str]:
    """Split the comma-separated value of an environment variable."""
    return [part.strip() for part in value.split(",") if part.strip()]
