"""The setting `ONCEHOOK`: a dict with the keys of `oncehook.toml`, and three more.

`using` is the alias of the database (default: "default"). `config` is the path of an `oncehook.toml`, whose tables the
dict extends and overrides. `worker` says whether web processes run handlers too (default: True).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.utils import ConnectionDoesNotExist
from django.utils.connection import ConnectionDoesNotExist as UnknownAlias

from oncehook.config.configuration import DEFAULT_FILE, Configuration, check_names, parse, read_file
from oncehook.integrations.django.address import database_address
from oncehook.model.errors import ConfigurationError

TABLES = ("sources", "consumers", "providers", "shards", "dashboard", "alerts")


@dataclass(frozen=True)
class DjangoConfiguration:
    """The configuration of the inbox of a Django project."""

    using: str
    worker: bool
    configuration: Configuration


def read_setting() -> DjangoConfiguration:
    """Read `settings.ONCEHOOK`, or `oncehook.toml`. Raises ConfigurationError for a value that cannot be used."""
    values = getattr(settings, "ONCEHOOK", {})
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"the setting ONCEHOOK is a {type(values).__name__}: make it a dict")
    check_names(values, "the setting ONCEHOOK has")
    own = dict(values)
    using, worker, config = own.pop("using", "default"), own.pop("worker", True), own.pop("config", None)
    if not isinstance(worker, bool):
        raise ConfigurationError(f"ONCEHOOK['worker'] is {worker!r}: set it to True or False")
    if not isinstance(using, str):
        raise ConfigurationError(f"ONCEHOOK['using'] is {using!r}: set it to the alias of one database, as text")
    if not isinstance(config, str | os.PathLike | None):
        raise ConfigurationError(f"ONCEHOOK['config'] is {config!r}: set it to the path of a file")
    file = _find_file(config)
    tables = _merge({} if file is None else read_file(file), own)
    for where, is_set in ((str(file), "database" in tables), ("the environment", "ONCEHOOK_DATABASE" in os.environ)):
        if is_set:
            raise ConfigurationError(
                f"`database` is set in {'ONCEHOOK' if 'database' in own else where}: in a Django project the inbox "
                f"uses DATABASES[{using!r}]; remove it, or choose another alias with ONCEHOOK['using']"
            )
    tables.setdefault("migrate", "never")
    configuration = parse(tables, os.environ, file)
    address = django_address(using)
    return DjangoConfiguration(
        using, worker, replace(configuration, settings=replace(configuration.settings, database=address))
    )


def django_address(using: str) -> str:
    """Return the address of the database of an alias, under its current name: tests change it."""
    try:
        connection = connections[using]
    except (ConnectionDoesNotExist, UnknownAlias):
        raise ConfigurationError(
            f"ONCEHOOK['using'] is {using!r}, and DATABASES has no such alias: it has {', '.join(connections)}"
        ) from None
    if not connection.settings_dict.get("AUTOCOMMIT", True):
        raise ConfigurationError(
            f"DATABASES[{using!r}] has AUTOCOMMIT False: Django then opens no transaction for a handler; remove it"
        )
    return database_address(using, connection.settings_dict, connection.vendor)


def _find_file(config: str | os.PathLike[str] | None) -> Path | None:
    named = config or os.environ.get("ONCEHOOK_CONFIG")
    if named:
        return Path(named)
    default = Path(getattr(settings, "BASE_DIR", None) or ".") / DEFAULT_FILE
    return default if default.is_file() else None


def _merge(tables: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of the file with those of the dict. An entry of the dict replaces one of the same name."""
    for name, value in own.items():
        if name in TABLES and isinstance(value, Mapping) and isinstance(tables.get(name), dict):
            tables[name] = {**tables[name], **value}
        else:
            tables[name] = value
    return tables
