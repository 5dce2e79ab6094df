"""Which addresses may be dialled for a target that is not written in the configuration file: public ones, and no other.

Pure: an address in, a reason against it out. `ipaddress` alone is not asked: it calls wrapped addresses such as
64:ff9b::a9fe:a9fe global, and what it calls private changes between versions of Python. Every network is written out
here, and its verdict is taken on top.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_V4: dict[str, str] = {
    "0.0.0.0/8": "of this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "of a carrier's own network",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a metadata service",
    "169.254.0.0/16": "link-local, where metadata services are",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved, where a metadata service is",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a relay of 6to4",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_V6: dict[str, str] = {
    "::1/128": "loopback",
    "::/96": "an IPv4 address in disguise",
    "::ffff:0:0:0/96": "an IPv4 address in disguise",
    "64:ff9b:1::/48": "a translation of a local network",
    "fc00::/7": "private, where metadata services are",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
    "2001::/23": "Teredo, or reserved",
    "2001:db8::/32": "for documentation",
    "2002::/16": "6to4, an IPv4 address in disguise",
    "3fff::/20": "for documentation",
}
_REFUSED_V4 = [(IPv4Network(network), reason) for network, reason in _V4.items()]
_REFUSED_V6 = [(IPv6Network(network), reason) for network, reason in _V6.items()]
_GLOBAL = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: how a network without IPv4 reaches it, so what is inside decides
_ISATAP = {0x00005EFE, 0x02005EFE}


def why_not(address: str) -> str | None:
    """Why this address is not dialled, or None if it is public. What is not an address is a reason too."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "not an address"
    return _why_not_v4(parsed) if isinstance(parsed, IPv4Address) else _why_not_v6(parsed)


def _why_not_v4(address: IPv4Address) -> str | None:
    found = next((reason for network, reason in _REFUSED_V4 if address in network), None)
    return found or (None if address.is_global else "not public")


def _why_not_v6(address: IPv6Address) -> str | None:
    if address.ipv4_mapped is not None:
        return _why_not_v4(address.ipv4_mapped)
    if address in _TRANSLATED:
        return _why_not_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    found = next((reason for network, reason in _REFUSED_V6 if address in network), None)
    if found is None and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        found = "ISATAP, an IPv4 address in disguise"
    return found or (None if address in _GLOBAL and address.is_global else "not public")
