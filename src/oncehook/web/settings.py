"""The keys under `[dashboard]`: users, API tokens and sessions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehook.config.configuration import named_tables, read_table
from oncehook.config.setting import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import duration, one_of, positive, text, texts

SCOPES = ("read", "replay", "admin")
ROLES: Mapping[str, frozenset[str]] = {"viewer": frozenset({"read"}), "operator": frozenset(SCOPES)}
PASSWORD_HASH = re.compile(r"scrypt:(?:[4-9]|1[0-9]|20):[A-Za-z0-9_-]{22}:[A-Za-z0-9_-]{43}")
TOKEN_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def scopes(value: Any) -> tuple[str, ...]:
    names = texts(value)
    if not names or not set(names) <= set(SCOPES):
        raise ValueError(f"expected a list of {', '.join(SCOPES)}")
    return names


ADDRESS = re.compile(r"(https?://[a-z0-9.\[\]:-]+)((?:/[\w.~-]+)*)/?", re.IGNORECASE | re.ASCII)


def address(value: Any) -> str:
    """An http or https URL, with the path where the dashboard is mounted."""
    match = ADDRESS.fullmatch(str(value))
    if match is None:
        raise ValueError('expected a URL such as "https://hooks.example.com"')
    return match[1].lower() + match[2]


@dataclass(frozen=True, kw_only=True)
class UserSettings:
    """A user of the dashboard: the keys under `[dashboard.users.NAME]`."""

    password: str = setting("", text, "The hash of the password. `oncehook access NAME` prints it.")
    role: str = setting(
        "viewer",
        one_of(*ROLES),
        "`viewer` can only view; `operator` can also replay, rehearse, pause, suppress and erase.",
    )


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """An API token: the keys under `[dashboard.tokens.NAME]`."""

    token: str = setting("", text, "The hash of the token. `oncehook access NAME --token` prints it.")
    scopes: tuple[str, ...] = setting(
        ("read",),
        scopes,
        "`read` can view; `replay` can replay and rehearse; `admin` can erase payloads, pause sources and edit "
        "suppressions.",
    )


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """The keys under `[dashboard]`."""

    public_url: str | None = setting(
        None,
        address,
        "The URL of the dashboard behind a proxy, such as `https://hooks.example.com`. If an app mounts the dashboard, "
        "include the mount path.",
    )
    session_key: str | None = setting(
        None,
        text,
        "The key that signs sessions: `env:NAME`, `file:PATH` or the value. Default: a new key at each start.",
    )
    session_length: float = setting(12 * 3600.0, positive(duration), "How long a session lasts.")
    users: Mapping[str, UserSettings] = field(default_factory=dict)
    tokens: Mapping[str, TokenSettings] = field(default_factory=dict)

    @property
    def origin(self) -> str | None:
        """`public_url` without its path, as in an `Origin` header."""
        return None if self.public_url is None else "/".join(self.public_url.split("/")[:3])


def read_dashboard(table: Mapping[str, Any]) -> DashboardSettings:
    """Read and check the table. A ConfigurationError names the key and never shows a hash."""
    rest = {name: value for name, value in table.items() if name not in ("users", "tokens")}
    users = named_tables(table.get("users", {}), "dashboard.users")
    tokens = named_tables(table.get("tokens", {}), "dashboard.tokens")
    return DashboardSettings(
        **read_table(DashboardSettings, rest, "dashboard."),
        users={name: _user(name, values) for name, values in users.items()},
        tokens={name: _token(name, values) for name, values in tokens.items()},
    )


def _user(name: str, values: Mapping[str, Any]) -> UserSettings:
    where = f"dashboard.users.{name}."
    user = UserSettings(**read_table(UserSettings, values, where))
    if not PASSWORD_HASH.fullmatch(user.password):
        raise ConfigurationError(f"{where}password is not a hash. Run `oncehook access {name}` to make one")
    return user


def _token(name: str, values: Mapping[str, Any]) -> TokenSettings:
    where = f"dashboard.tokens.{name}."
    token = TokenSettings(**read_table(TokenSettings, values, where))
    if not TOKEN_HASH.fullmatch(token.token):
        raise ConfigurationError(f"{where}token is not a hash. Run `oncehook access {name} --token` to make one")
    return token
