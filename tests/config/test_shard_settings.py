"""The settings of shards: which contradictions are errors, and which shard a source or a tenant has."""

from pathlib import Path

import pytest

from oncehook.config.configuration import load
from oncehook.config.shard_settings import (
    ShardSettings,
    check_shards,
    configured_shard,
    database_of,
    shard_of_tenant,
    spread_over,
)
from oncehook.model.errors import ConfigurationError

MAIN = "postgresql://localhost/main"


def shard(name: str = "a", *, sources: tuple[str, ...] = (), tenants: tuple[str, ...] = ()) -> ShardSettings:
    return ShardSettings(database=f"postgresql://localhost/{name}", sources=sources, tenants=tenants)


def test_name_of_a_source_wins_over_a_pattern_and_the_rest_is_in_main() -> None:
    shards = {"a": shard("a", sources=("*-eu",)), "b": shard("b", sources=("stripe-eu",))}
    check_shards(shards, MAIN)
    assert configured_shard(shards, "stripe-eu") == "b"
    assert configured_shard(shards, "shop-eu") == "a"
    assert configured_shard(shards, "github") == "main"


@pytest.mark.parametrize(
    ("shards", "database", "message"),
    [
        ({"a": shard()}, "sqlite:///file.db", "needs PostgreSQL"),
        ({"main": shard()}, MAIN, "Use another name"),
        ({"a": ShardSettings()}, MAIN, "shards.a.database is missing"),
        ({"a": shard("main")}, MAIN, "is also the setting database"),
        ({"a": shard("x"), "b": shard("x")}, MAIN, "is also shards.a.database"),
        ({"a": ShardSettings(database="sqlite:///x.db")}, MAIN, "is not a postgresql:// address"),
        ({"a": shard("a", sources=("one",)), "b": shard("b", sources=("one",))}, MAIN, "lives in one shard"),
        ({"a": shard("a", sources=("one",)), "b": shard("b", tenants=("one",))}, MAIN, "tenants are spread"),
        ({f"s{n}": shard(f"s{n}") for n in range(901)}, MAIN, "at most 900"),
    ],
)
def test_contradictions_are_errors(shards: dict[str, ShardSettings], database: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_shards(shards, database)


def test_address_of_a_shard_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EU_DATABASE", "postgresql://db2/hooks")
    assert database_of("eu", ShardSettings(database="env:EU_DATABASE")) == "postgresql://db2/hooks"


def test_tenant_keeps_its_shard_whatever_the_order_of_the_names_is() -> None:
    shards = {"b": shard("b", tenants=("app",)), "a": shard("a", tenants=("app",)), "c": shard("c")}
    names = spread_over(shards, "app")
    assert names == ("a", "b") and spread_over(shards, "other") == ()
    found = [shard_of_tenant(names, "app", f"t{number}") for number in range(1000)]
    assert 400 < found.count("a") < 600
    # A third shard would take a third of the tenants, and change no other.
    three = [shard_of_tenant(("a", "b", "c"), "app", f"t{number}") for number in range(1000)]
    assert all(after in (before, "c") for before, after in zip(found, three, strict=True))
    assert "".join(found[:40]) == "bbbabaababbbaabbaabaabaabbbbbabbaaababbb", "stored rows depend on it"


def test_shards_are_read_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "oncehook.toml"
    file.write_text(f'database = "{MAIN}"\n[shards.eu]\ndatabase = "postgresql://db2/hooks"\nsources = ["one"]\n')
    assert load(file, {}).shards == {"eu": ShardSettings(database="postgresql://db2/hooks", sources=("one",))}
    file.write_text("[shards.EU]\n")
    with pytest.raises(ConfigurationError, match=r"shards\.EU"):
        load(file, {})
