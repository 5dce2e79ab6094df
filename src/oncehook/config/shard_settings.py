"""The settings of a shard, each with its default, parser and description: the keys under `[shards.NAME]`.

A shard is a PostgreSQL database. Each source lives in one shard, or its tenants are spread over several. Sources that
no shard names live in `main`, the database of the setting `database`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from oncehook.config.secret import resolve
from oncehook.config.setting import setting
from oncehook.model.errors import ConfigurationError
from oncehook.model.values import text, texts

MAIN_SHARD = "main"
"""The shard with the database of the setting `database`."""

MAX_SHARDS = 900
"""Receipt numbers of all shards stay below 2^53, so that programs which read JSON numbers as floats keep them."""


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """The settings of one shard: the keys under `[shards.NAME]`."""

    database: str = setting(
        "",
        text,
        "The PostgreSQL database of the shard: `env:NAME`, `file:PATH` or the address. Nothing else may use it.",
    )
    sources: tuple[str, ...] = setting(
        (), texts, "The sources that live in this shard: names, or shell patterns. A name wins over a pattern."
    )
    tenants: tuple[str, ...] = setting(
        (),
        texts,
        "The sources whose tenants are spread, by a hash of the tenant, over all shards that list the source here.",
    )


def check_shards(shards: Mapping[str, ShardSettings], database: str) -> None:
    """Raise ConfigurationError for shards that contradict each other, or that have no database."""
    if not shards:
        return
    if not database.startswith(("postgresql:", "postgres:")):
        raise ConfigurationError("[shards] needs PostgreSQL: set database to a postgresql:// address")
    if len(shards) > MAX_SHARDS:
        raise ConfigurationError(f"there are {len(shards)} shards, and at most {MAX_SHARDS} are possible")
    listed: dict[str, str] = {}
    addresses = {database: f"the setting database (shard {MAIN_SHARD})"}
    for name, shard in shards.items():
        _check_database(name, shard, addresses)
        for source in shard.sources:
            if source in listed:
                raise ConfigurationError(
                    f"shards.{name}.sources lists {source!r}, which shards.{listed[source]}.sources lists too: a "
                    f"source lives in one shard"
                )
            listed[source] = name
    for name, shard in shards.items():
        both = sorted(listed.keys() & set(shard.tenants))
        if both:
            raise ConfigurationError(
                f"shards.{name}.tenants lists {both[0]!r}, which shards.{listed[both[0]]}.sources lists: either the "
                f"whole source lives in one shard, or its tenants are spread"
            )


def _check_database(name: str, shard: ShardSettings, addresses: dict[str, str]) -> None:
    if name == MAIN_SHARD:
        raise ConfigurationError(
            f"shards.{MAIN_SHARD}: {MAIN_SHARD} is the database of the setting `database`, and has every source that "
            f"no other shard lists. Use another name"
        )
    if not shard.database:
        raise ConfigurationError(f"shards.{name}.database is missing: write a postgresql:// address")
    address = database_of(name, shard)
    if address in addresses:
        raise ConfigurationError(f"shards.{name}.database is also {addresses[address]}: each shard is a database")
    addresses[address] = f"shards.{name}.database"


def database_of(name: str, shard: ShardSettings) -> str:
    """Return the address of a shard's database. Raises ConfigurationError if it is not one of PostgreSQL."""
    address = resolve(shard.database, f"shards.{name}.database", owner="shard").strip()
    if not address.startswith(("postgresql:", "postgres:")):
        raise ConfigurationError(f"shards.{name}.database is not a postgresql:// address")
    return address


def configured_shard(shards: Mapping[str, ShardSettings], source: str) -> str:
    """Return the shard of a source by the configuration. A name wins over a pattern, the first pattern over others."""
    for name, shard in shards.items():
        if source in shard.sources:
            return name
    matching = (name for name, shard in shards.items() if any(fnmatchcase(source, one) for one in shard.sources))
    return next(matching, MAIN_SHARD)


def spread_over(shards: Mapping[str, ShardSettings], source: str) -> tuple[str, ...]:
    """Return the shards over which the tenants of a source are spread, by name. Empty if the source is in one shard."""
    return tuple(sorted(name for name, shard in shards.items() if source in shard.tenants))


def shard_of_tenant(names: tuple[str, ...], source: str, tenant: str) -> str:
    """Return the shard of a tenant by rendezvous hashing: it depends on nothing but the names."""
    return max(names, key=lambda name: hashlib.sha256(f"{name}\n{source}\n{tenant}".encode()).digest())
