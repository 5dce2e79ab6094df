"""The IP address of the client behind the operator's proxies."""

from ipaddress import ip_network

import pytest

from oncehook.providers.forwarded_address import Proxies


@pytest.mark.parametrize(
    ("peer", "chains", "client"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, nonsense, 10.0.0.2"], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9", "203.0.113.10"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("203.0.113.7", ["203.0.113.9"], "203.0.113.7"),
        ("/run/proxy.sock", ["203.0.113.9"], "/run/proxy.sock"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        (None, ["203.0.113.9"], ""),
    ],
)
def test_client_is_the_last_address_that_no_listed_proxy_has(peer: str | None, chains: list[str], client: str) -> None:
    proxies = Proxies([ip_network("10.0.0.0/8")])
    scope = {"client": peer and (peer, 5), "headers": [(b"x-forwarded-for", chain.encode()) for chain in chains]}
    assert proxies.client(scope) == client
