"""Determines the address that a sender used from the headers of the operator's own proxy.

Sources without a `public_url` need it if their provider signs the address. Anyone can send `X-Forwarded-Host` or
`Host`, so these headers count only if the peer of the connection is listed in `trusted_proxies`. If a header has
several values, the last one counts: the listed peer added it. A repeated header is ambiguous, because one copy may be
the sender's own trailer. An ambiguous delivery has no address, and its signature does not verify.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import quote

from oncehook.model.delivery import Delivery
from oncehook.model.values import Network

USUAL_PORTS = {"https": "443", "http": "80"}
NAMES = ("x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix")
_FORWARDED = frozenset(name.encode() for name in (*NAMES, "forwarded", "host"))
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?", re.ASCII)
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+){1,32}", re.ASCII)
_PATH = re.compile(r"/[!-\"$->@-~]*", re.ASCII)  # printable characters without space, # and ?
_PAIR = re.compile(r'\s*(?:([a-z]+)\s*=\s*(?:"([^"\\]*)"|([^\s",;]+))\s*)?', re.ASCII | re.IGNORECASE)
_ADDRESS = re.compile(r"(https?)://([^/?#]*?)(?::(\d+))?([/?].*)?", re.ASCII | re.DOTALL)
_LONGEST = 1024

ADDRESS = ":address"
"""The name of the address among the headers of a rejection sample. No header of a request can have this name."""

Scope = Mapping[str, Any]


class Proxies:
    """The operator's own proxies."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks

    def __bool__(self) -> bool:
        return bool(self.networks)

    def __contains__(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False  # a socket in the file system
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # a dual-stack socket reports IPv4 peers like this
        return any(address in network for network in self.networks)

    def client(self, scope: Scope) -> str:
        """The IP address of the client: the peer, or the `X-Forwarded-For` that listed proxies set."""
        peer = scope.get("client")
        if not peer:
            return ""
        chain = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        if peer[0] not in self or len(chain) != 1:
            return str(peer[0])
        for hop in reversed(chain[0].decode("latin-1").split(",")):
            address: str = hop.strip()
            if not _is_ip(address):
                break
            if address not in self:
                return address
        return str(peer[0])

    def address(self, scope: Scope, delivery: Delivery) -> str:
        """The address that the sender used, without its query. Empty if no listed proxy reports it."""
        client = scope.get("client")
        if not client or client[0] not in self or not delivery.repeated.isdisjoint(_FORWARDED):
            return ""
        x_forwarded = {name: _last(delivery, name) for name in NAMES}
        element = _last(delivery, "forwarded")
        if not element:
            return _build(scope, delivery, x_forwarded)
        forwarded = _parse_forwarded(element)
        if forwarded is None:
            return ""
        if not any(x_forwarded.values()):
            return _build(scope, delivery, forwarded)
        address = _build(scope, delivery, x_forwarded)
        agree = not any(forwarded.values()) or _build(scope, delivery, forwarded) == address
        return address if agree else ""  # if they differ, one of them may come from the sender


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _last(delivery: Delivery, name: str) -> str:
    """The last value of a list header. Each proxy appends its value."""
    return delivery.headers.get(name.encode(), b"").decode("latin-1").rpartition(",")[2].strip()


def _parse_forwarded(element: str) -> dict[str, str] | None:
    """The last element of `Forwarded`, under the names of the other headers. None if it is malformed."""
    values: dict[str, str] = {}
    for part in element.split(";"):
        match = _PAIR.fullmatch(part)
        if match is None:
            return None
        if match[1]:
            name = "x-forwarded-" + match[1].lower()
            if name in values:
                return None
            values[name] = match[2] if match[2] is not None else match[3]
    return {name: values.get(name, "") for name in ("x-forwarded-proto", "x-forwarded-host")}


def _build(scope: Scope, delivery: Delivery, headers: Mapping[str, str]) -> str:
    scheme = headers["x-forwarded-proto"].lower() or scope.get("scheme", "http")
    host = _HOST.fullmatch(headers["x-forwarded-host"] or _own_host(delivery))
    port = headers.get("x-forwarded-port", "")
    prefix = headers.get("x-forwarded-prefix", "").rstrip("/")
    path = _path(scope)
    if scheme not in USUAL_PORTS or host is None or not _PATH.fullmatch(path) or len(path) > _LONGEST:
        return ""
    if (port and not _is_port(port)) or (host[2] and not _is_port(host[2])):
        return ""
    if prefix and (len(prefix) > _LONGEST or not _PREFIX.fullmatch(prefix) or ".." in prefix):
        return ""
    if prefix == _served_below(scope) and path.startswith(prefix + "/"):
        prefix = ""  # the server knows the prefix too, and has already added it to the path
    shown_port = host[2] if not port else None if port == USUAL_PORTS[scheme] else port
    return f"{scheme}://{host[1]}{':' + shown_port if shown_port else ''}{prefix}{path}"


def _own_host(delivery: Delivery) -> str:
    return delivery.headers.get(b"host", b"").decode("latin-1")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536


def _served_below(scope: Scope) -> str:
    """The prefix below which the whole app is served. A mount inside the app does not count."""
    return str(scope.get("app_root_path", scope.get("root_path", ""))).rstrip("/")


def _path(scope: Scope) -> str:
    """The path as it was sent, without decoding, if the server provides it."""
    raw = scope.get("raw_path")
    path = quote(scope["path"], safe="/~!$&'()*+,;=:@") if raw is None else raw.decode("latin-1")
    return str(path.partition("?")[0])  # some servers include the query


def split_url(url: str) -> tuple[str, str, str, str] | None:
    """Scheme, host, port and the rest of an http address, unchanged. None for any other text."""
    match = _ADDRESS.fullmatch(url)
    return None if match is None else (match[1], match[2], match[3] or "", match[4] or "")
