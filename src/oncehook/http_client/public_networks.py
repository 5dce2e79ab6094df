"""Decides which IP addresses are public. The client connects to others only for targets in the configuration file.

`ipaddress` alone is not enough: it calls wrapped addresses such as 64:ff9b::a9fe:a9fe global, and its list of private
networks differs between versions of Python. So this module lists every network itself, and applies the verdict of
`ipaddress` as well.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_V4: dict[str, str] = {
    "0.0.0.0/8": "of this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "of a carrier network",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a metadata service",
    "169.254.0.0/16": "link-local, used by metadata services",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved, used by a metadata service",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarking",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_V6: dict[str, str] = {
    "::1/128": "loopback",
    "::/96": "a wrapped IPv4 address",
    "::ffff:0:0:0/96": "a wrapped IPv4 address",
    "64:ff9b:1::/48": "a local NAT64 translation",
    "fc00::/7": "private, used by metadata services",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
    "2001::/23": "Teredo, or reserved",
    "2001:db8::/32": "for documentation",
    "2002::/16": "6to4, a wrapped IPv4 address",
    "3fff::/20": "for documentation",
}
_BLOCKED_V4 = [(IPv4Network(network), reason) for network, reason in _V4.items()]
_BLOCKED_V6 = [(IPv6Network(network), reason) for network, reason in _V6.items()]
_GLOBAL = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64 wraps an IPv4 address, and that address decides
_ISATAP = {0x00005EFE, 0x02005EFE}


def blocked_reason(address: str) -> str | None:
    """Why the client must not connect to this address, or None if it is public. Other text is blocked."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "not an address"
    return _blocked_reason_v4(parsed) if isinstance(parsed, IPv4Address) else _blocked_reason_v6(parsed)


def _blocked_reason_v4(address: IPv4Address) -> str | None:
    reason = next((reason for network, reason in _BLOCKED_V4 if address in network), None)
    return reason or (None if address.is_global else "not public")


def _blocked_reason_v6(address: IPv6Address) -> str | None:
    if address.ipv4_mapped is not None:
        return _blocked_reason_v4(address.ipv4_mapped)
    if address in _TRANSLATED:
        return _blocked_reason_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    reason = next((reason for network, reason in _BLOCKED_V6 if address in network), None)
    if reason is None and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        reason = "ISATAP, a wrapped IPv4 address"
    return reason or (None if address in _GLOBAL and address.is_global else "not public")
