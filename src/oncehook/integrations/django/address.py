"""The address of a Django database, as the store of the inbox connects to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from oncehook.model.errors import ConfigurationError

DJANGO_OPTIONS = {
    "assume_role",
    "client_encoding",
    "cursor_factory",
    "isolation_level",
    "pool",
    "prepare_threshold",
    "server_side_binding",
}
"""Options of Django and of its driver that are not part of an address."""

ADDRESS_OPTIONS = {
    "application_name",
    "options",
    "passfile",
    "service",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
}
LIBPQ_OPTIONS = {"connect_timeout", "gssencmode", "keepalives", "keepalives_count", "keepalives_idle"} | {
    "keepalives_interval",
    "sslcompression",
    "tcp_user_timeout",
}
"""Options of libpq about its own sockets, which the store's driver does not have or need."""

SUPPORTED = ("postgresql", "sqlite")


def database_address(alias: str, settings: Mapping[str, Any], vendor: str) -> str:
    """Return the address of `DATABASES[alias]`. Raises ConfigurationError if the inbox cannot use this database."""
    if vendor == "sqlite":
        return _sqlite_address(alias, settings)
    if vendor == "postgresql":
        return _postgres_address(alias, settings)
    raise ConfigurationError(
        f"DATABASES[{alias!r}] is on {vendor}, and Oncehook stores events in PostgreSQL or SQLite. A handler's writes "
        f"are exactly once only in the database of the inbox: set ONCEHOOK['using'] to an alias on PostgreSQL or "
        f"SQLite, and write your models there"
    )


def _sqlite_address(alias: str, settings: Mapping[str, Any]) -> str:
    name = str(settings["NAME"])
    if name == ":memory:" or "mode=memory" in name:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is in memory, and other connections cannot see it: set its NAME to a file"
        )
    if name.startswith("file:"):
        raise ConfigurationError(f"DATABASES[{alias!r}]: set NAME to the path of the SQLite file, without file:")
    return f"sqlite:///{Path(name).absolute()}"


def _postgres_address(alias: str, settings: Mapping[str, Any]) -> str:
    """Return a URL. Options that the server should get become settings of its sessions."""
    options = dict(settings.get("OPTIONS") or {})
    query: dict[str, Any] = {}
    for name, value in options.items():
        if name in ADDRESS_OPTIONS:
            query[name] = value
        elif name not in DJANGO_OPTIONS | LIBPQ_OPTIONS:
            raise ConfigurationError(
                f"DATABASES[{alias!r}]: Oncehook does not know how to pass OPTIONS[{name!r}] to its own connections: "
                f"remove it, or pass it to the server with OPTIONS['options'] = '-c name=value'"
            )
    query.pop("application_name", None)
    if options.get("assume_role"):
        query["role"] = options["assume_role"]
    host = str(settings.get("HOST") or "")
    if host.startswith("/"):  # the directory of a socket
        query["host"], host = host, ""
    user = quote(str(settings.get("USER") or ""), safe="")
    password = quote(str(settings.get("PASSWORD") or ""), safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    port = str(settings.get("PORT") or "")
    _check_port(alias, port)
    if "host" in query and port:
        query["port"], port = port, ""
    hosts = f"[{host}]" if ":" in host and not host.startswith("[") else host
    name = quote(str(settings.get("NAME") or ("" if "service" in query else "postgres")), safe="")
    suffix = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return f"postgresql://{login}{hosts}{':' + port if port else ''}/{name}{suffix}"


def _check_port(alias: str, text: str) -> None:
    for port in text.split(",") if text else ():  # one for each host, or one for all
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigurationError(f"DATABASES[{alias!r}] has the PORT {port!r}: set it to a number from 1 to 65535")
