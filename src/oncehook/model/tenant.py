"""The name of a tenant, and the limits of a source with tenants: its cache, its lookups and its deliveries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oncehook.model.values import Parse, duration, positive, rate, whole_number

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
"""A tenant is the last part of a URL, so its name has no character that a URL would escape."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a source with tenants, per process: the keys of `tenants` under `[sources.NAME]`.

    inbox.source("stripe", secrets_for=lookup, tenants={"ttl": "5m", "rate": "50/s"})
    """

    cache: int = 10_000  # known tenants in memory, and as many unknown ones
    ttl: float = 60.0  # seconds after which a tenant's secrets are looked up again
    stale: float = 3600.0  # seconds for which they stay in use after that while lookups fail
    timeout: float = 2.0  # seconds that one lookup may take
    lookups: float = 200.0  # lookups of new tenants per second, and as many of tenants that are cached
    rate: float | None = None  # deliveries per second of one tenant; None: no limit


_FIELDS: Mapping[str, Parse] = {
    "cache": positive(whole_number),
    "ttl": positive(duration),
    "stale": duration,
    "timeout": positive(duration),
    "lookups": rate,
    "rate": rate,
}


def tenant_limits(value: Any) -> TenantLimits | None:
    """Parse a source's `tenants`: `true` for the default limits, or a table with some of them."""
    if isinstance(value, TenantLimits):
        return value
    if isinstance(value, bool):
        return TenantLimits() if value else None
    if not isinstance(value, Mapping):
        raise ValueError('expected true, or a table such as { cache = 10000, ttl = "1m", rate = "50/s" }')
    limits = {}
    for name, limit in value.items():
        if name not in _FIELDS:
            raise ValueError(f"{name} is not a field of it; the fields are {', '.join(_FIELDS)}")
        try:
            limits[name] = _FIELDS[name](limit)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return replace(TenantLimits(), **limits)
