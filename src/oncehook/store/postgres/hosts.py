"""Connects to the primary among several hosts: `postgresql://h1,h2/db?target_session_attrs=read-write`.

asyncpg tries the hosts in order within one timeout. A host that is switched off answers nothing and would use up all of
it, and a server that is just starting would end the search in older versions. Here every host gets its share of the
timeout, every failure leads to the next host, and the host that worked last is tried first.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from oncehook.concurrency.clock import SYSTEM

NO_PRIMARY = "no host accepts writes: a failover may be running"
ATTRIBUTES = "target_session_attrs"


class Hosts:
    """The hosts of a database URL. `urls` has one URL per host."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self._last = 0

    async def connect(self, *, seconds: float, writes: bool = False, **options: Any) -> Any:
        """Open a connection to the first host that has the attributes of the URL, within this time."""
        deadline = SYSTEM.monotonic() + seconds
        errors: list[Exception] = []
        first, count = self._last, len(self.urls)
        for tried in range(count):
            number = (first + tried) % count
            share = max(0.01, (deadline - SYSTEM.monotonic()) / (count - tried))
            try:
                connection = await asyncpg.connect(self.urls[number], timeout=share, **options)
                _check_writes(connection, writes)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
                errors.append(error)
            else:
                self._last = number
                return connection
        raise _most_useful(errors)


@cache
def hosts_of(address: str) -> Hosts:
    """Return the hosts of a database URL. All connections of a process share them."""
    return Hosts(split_hosts(address))


async def connect(address: str, *, seconds: float, **options: Any) -> Any:
    """Open a connection, as `asyncpg.connect` does. With several hosts or `writes`, only to one that accepts writes."""
    return await hosts_of(address).connect(seconds=seconds, **options)


def split_hosts(address: str) -> list[str]:
    """Return a URL for each host of a URL.

    The hosts are before the path or in the parameter `host`. With several of them and no `target_session_attrs`, the
    URLs require a server that accepts writes.
    """
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    login, at, hosts = parts.netloc.rpartition("@")
    in_query = "host" in query
    names = (query["host"] if in_query else hosts).split(",")
    if len(names) == 1:
        return [address]
    query.setdefault(ATTRIBUTES, "read-write")
    ports = query.get("port", "").split(",")
    urls = []
    for number, name in enumerate(names):
        own = {"host": name} if in_query else {}
        port = ports[number] if len(ports) == len(names) else ports[0]
        merged = {**query, **own, **({"port": port} if port else {})}
        netloc = parts.netloc if in_query else f"{login}{at}{name}"
        urls.append(urlunsplit(parts._replace(netloc=netloc, query=urlencode(merged))))
    return urls


def _check_writes(connection: Any, writes: bool) -> None:
    """Reject a standby, which an address may lead to during a failover. A server reports that it is one."""
    if writes and getattr(connection.get_settings(), "in_hot_standby", "off") == "on":
        connection.terminate()
        raise asyncpg.TargetServerAttributeNotMatched(NO_PRIMARY)


def _most_useful(errors: Sequence[Exception]) -> Exception:
    """Return the error of a server that answered, such as a wrong password, rather than that of one that is down."""
    answered = (asyncpg.PostgresError, asyncpg.InternalClientError)
    return next((error for error in errors if isinstance(error, answered)), errors[-1])
