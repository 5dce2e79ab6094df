"""Protection against DNS rebinding: which host names belong to this service."""

import pytest

from oncehook.web.hosts import is_known_host


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "localhost:8000", "[::1]:8000", "inbox", "inbox:8000", "10.0.0.7", "a.localhost"],
)
def test_addresses_and_local_names_are_known(host: str) -> None:
    assert is_known_host(host, None)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a b", "[::1].evil", "", "[", "x:y"],
)
def test_names_with_a_dot_that_are_not_configured_are_unknown(host: str) -> None:
    assert not is_known_host(host, None)
    assert not is_known_host(host, "https://hooks.example.com")


def test_host_of_the_public_url_is_known_at_any_port() -> None:
    for host in ("hooks.example.com", "hooks.example.com:8443", "hooks.example.com."):
        assert is_known_host(host, "https://hooks.example.com/admin")
    assert not is_known_host("other.example.com", "https://hooks.example.com/admin")
