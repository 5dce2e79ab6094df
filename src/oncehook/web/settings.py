"""The keys under `[dashboard]`: who may sign in, which programs may ask, and how sessions are signed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehook.config.configuration import named_tables, read_table
from oncehook.config.settings import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import duration, one_of, positive, text, texts

SCOPES = ("read", "replay", "admin")
ROLES: Mapping[str, frozenset[str]] = {"viewer": frozenset({"read"}), "operator": frozenset(SCOPES)}
PASSWORD_HASH = re.compile(r"scrypt:(?:[4-9]|1[0-9]|20):[A-Za-z0-9_-]{22}:[A-Za-z0-9_-]{43}")
TOKEN_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def scopes(value: Any) -> tuple[str, ...]:
    named = texts(value)
    if not named or not set(named) <= set(SCOPES):
        raise ValueError(f"expected a list of {', '.join(SCOPES)}")
    return named


ADDRESS = re.compile(r"(https?://[a-z0-9.\[\]:-]+)((?:/[\w.~-]+)*)/?", re.IGNORECASE | re.ASCII)


def address(value: Any) -> str:
    """An http or https address, with the path where the dashboard is mounted."""
    found = ADDRESS.fullmatch(str(value))
    if found is None:
        raise ValueError('expected an address such as "https://hooks.example.com"')
    return found[1].lower() + found[2]


@dataclass(frozen=True, kw_only=True)
class UserSettings:
    """Somebody who may sign in: the keys under `[dashboard.users.NAME]`."""

    password: str = setting("", text, "Its hash, as `oncehook access NAME` makes it.")
    role: str = setting(
        "viewer", one_of(*ROLES), "`viewer` looks; `operator` also replays, rehearses, pauses, suppresses and erases."
    )


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """A token for programs: the keys under `[dashboard.tokens.NAME]`."""

    token: str = setting("", text, "Its hash, as `oncehook access NAME --token` makes it.")
    scopes: tuple[str, ...] = setting(
        ("read",),
        scopes,
        "`read` looks; `replay` replays and rehearses; `admin` erases payloads, pauses sources and edits suppressions.",
    )


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """The keys under `[dashboard]` itself."""

    public_url: str | None = setting(
        None,
        address,
        "Where people reach it, such as `https://hooks.example.com`, when that is behind a proxy; with its path where "
        "it is mounted in an app.",
    )
    session_key: str | None = setting(
        None, text, "What sessions are signed with: `env:NAME`, `file:PATH` or the value. Unset: new at each start."
    )
    session_length: float = setting(12 * 3600.0, positive(duration), "How long a sign-in lasts.")
    users: Mapping[str, UserSettings] = field(default_factory=dict)
    tokens: Mapping[str, TokenSettings] = field(default_factory=dict)

    @property
    def origin(self) -> str | None:
        """`public_url` as it stands in an `Origin` header: without a path."""
        return None if self.public_url is None else "/".join(self.public_url.split("/")[:3])


def read_dashboard(given: Mapping[str, Any]) -> DashboardSettings:
    """The table, checked. Raises ConfigurationError that names the wrong key, and shows no hash."""
    rest = {name: value for name, value in given.items() if name not in ("users", "tokens")}
    users = named_tables(given.get("users", {}), "dashboard.users")
    tokens = named_tables(given.get("tokens", {}), "dashboard.tokens")
    return DashboardSettings(
        **read_table(DashboardSettings, rest, "dashboard."),
        users={name: _user(name, values) for name, values in users.items()},
        tokens={name: _token(name, values) for name, values in tokens.items()},
    )


def _user(name: str, values: Mapping[str, Any]) -> UserSettings:
    where = f"dashboard.users.{name}."
    user = UserSettings(**read_table(UserSettings, values, where))
    if not PASSWORD_HASH.fullmatch(user.password):
        raise ConfigurationError(f"{where}password is not a hash: `oncehook access {name}` makes one")
    return user


def _token(name: str, values: Mapping[str, Any]) -> TokenSettings:
    where = f"dashboard.tokens.{name}."
    token = TokenSettings(**read_table(TokenSettings, values, where))
    if not TOKEN_HASH.fullmatch(token.token):
        raise ConfigurationError(f"{where}token is not a hash: `oncehook access {name} --token` makes one")
    return token
