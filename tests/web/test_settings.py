"""The keys under [dashboard]: defaults, roles and scopes, and errors that name the key and show no secret."""

from typing import Any

import pytest

from oncehook import ConfigurationError
from oncehook.web.auth import hash_password, hash_token
from oncehook.web.settings import ROLES, read_dashboard

PASSWORD_HASH = hash_password("a password", cost=4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"users": {"x": {"password": "plain CANARY text"}}}, "dashboard.users.x.password is not a hash"),
        ({"tokens": {"x": {"token": "CANARY"}}}, "dashboard.tokens.x.token is not a hash"),
        ({"users": {"x": {"role": "admin"}}}, "expected one of viewer, operator"),
        ({"tokens": {"x": {"scopes": ["write"]}}}, "expected a list of read, replay, admin"),
        ({"user": {}}, "did you mean dashboard.users?"),
        ({"public_url": "https://x.example/path?token=1"}, "expected a URL such as"),
        ({"session_key": 5}, "dashboard.session_key is not usable"),
    ],
)
def test_error_names_the_key_and_shows_no_secret(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")) as error:
        read_dashboard(table)
    assert "CANARY" not in str(error.value)


def test_empty_table_has_no_users_and_sessions_of_12_hours() -> None:
    settings = read_dashboard({})
    assert (settings.users, settings.tokens, settings.public_url, settings.session_key) == ({}, {}, None, None)
    assert settings.session_length == 12 * 3600


def test_user_is_a_viewer_and_token_can_only_read_by_default() -> None:
    settings = read_dashboard(
        {"users": {"vera": {"password": PASSWORD_HASH}}, "tokens": {"ci": {"token": hash_token("x")}}}
    )
    assert settings.users["vera"].role == "viewer" and settings.tokens["ci"].scopes == ("read",)
    assert ROLES["viewer"] == {"read"} and ROLES["operator"] == {"read", "replay", "admin"}


def test_origin_is_the_public_url_without_its_path_and_in_lower_case() -> None:
    settings = read_dashboard({"public_url": "https://Hooks.Example.com/admin/Hooks/"})
    assert settings.public_url == "https://hooks.example.com/admin/Hooks"
    assert settings.origin == "https://hooks.example.com"
    assert read_dashboard({}).origin is None
