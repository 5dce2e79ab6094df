"""Settings of PostgreSQL with which acked events could be lost."""

import logging
from typing import Any

import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError
from oncehook.store import make_store
from oncehook.store.postgres.durability import connections_risk, risks, unsafe_setting
from tests.support.events import make_claim
from tests.support.servers import Postgres, private_postgres, run_sql

pytestmark = pytest.mark.anyio


async def test_start_fails_if_commits_are_asynchronous(postgres: Postgres) -> None:
    database = postgres.database()
    run_sql(database, f"ALTER DATABASE {database.rpartition('/')[2]} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError, match=r"synchronous_commit = off.*unsafe_durability"):
        await make_store(Settings(database=database)).open()
    assert run_sql(database, "SELECT count(*) FROM pg_class WHERE relname LIKE 'webhook_%'") == [(0,)]
    unsafe = make_store(Settings(database=database, unsafe_durability=True))
    await unsafe.open()
    assert (await unsafe.claims.insert([make_claim()]))[0].fresh
    await unsafe.close()


async def test_start_fails_if_fsync_is_off() -> None:
    with private_postgres(fsync="off") as cluster:
        database = cluster.database()
        with pytest.raises(ConfigurationError, match=r"fsync = off.*unsafe_durability"):
            await make_store(Settings(database=database)).open()
        unsafe = make_store(Settings(database=database, unsafe_durability=True))
        await unsafe.open()
        await unsafe.close()


async def test_start_fails_if_commits_do_not_wait_for_the_named_standby(database: str) -> None:
    with private_postgres(synchronous_standby_names="s1") as cluster:
        named = cluster.url("postgres")
        for value in ("local", "remote_write"):
            unsafe = make_store(Settings(database=f"{named}?synchronous_commit={value}", migrate="never"))
            with pytest.raises(ConfigurationError, match=f"synchronous_commit = {value}.*unsafe_durability"):
                await unsafe.open()
    alone = make_store(Settings(database=f"{database}?synchronous_commit=local"))  # no standby: it means the same as on
    await alone.open()
    await alone.close()


async def test_full_page_writes_off_is_reported_as_a_risk(caplog: pytest.LogCaptureFixture) -> None:
    with private_postgres(full_page_writes="off") as cluster:
        store = make_store(Settings(database=cluster.database()))
        with caplog.at_level(logging.WARNING, "oncehook"):
            await store.open()
        assert [vars(record).get("event") for record in caplog.records] == ["durability_risk"]
        assert "full_page_writes = off" in (await store.risks())[0]
        await store.close()


async def test_failed_start_closes_its_connections(database: str) -> None:
    name = database.rpartition("/")[2]
    run_sql(database, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError):
        await make_store(Settings(database=database)).open()
    others = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'oncehook'"
    assert run_sql(database, others) == [(0,)]


SAFE = {
    "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "standby_names": "", "standbys": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({}, None),
        ({"fsync": "off"}, "fsync = off"),
        ({"synchronous_commit": "off"}, "synchronous_commit = off"),
        ({"synchronous_commit": "local"}, None),
        ({"synchronous_commit": "local", "standby_names": "s1"}, "synchronous_commit = local"),
        ({"synchronous_commit": "remote_apply", "standby_names": "s1"}, None),
    ],
)
def test_unsafe_setting_is_one_that_can_lose_a_commit(changes: dict[str, Any], setting: str | None) -> None:
    assert unsafe_setting(SAFE | changes) == setting


def test_safe_server_has_no_risks() -> None:
    assert risks(SAFE) == []


def test_each_risk_is_a_sentence() -> None:
    sentences = risks(SAFE | {"fsync": "off", "full_page_writes": "off", "standbys": 2})
    assert len(sentences) == 3
    assert "2 asynchronous standby server(s)" in sentences[2]


def test_several_hosts_without_a_synchronous_standby_are_a_risk() -> None:
    """The standby may be away just now: a failover to it is expected anyway."""
    (sentence,) = risks(SAFE, hosts=2)
    assert "names 2 hosts" in sentence
    (sentence,) = risks(SAFE | {"standbys": 1}, hosts=2)
    assert "asynchronous standby" in sentence
    assert risks(SAFE | {"standby_names": "s1"}, hosts=2) == []


def test_more_connections_than_the_server_allows_are_a_risk() -> None:
    assert connections_risk(97, 97) is None
    assert (connections_risk(98, 97) or "").startswith("a process may use 98 connections, and PostgreSQL allows 97")


async def test_process_that_may_use_too_many_connections_logs_a_warning_at_start(
    postgres: Postgres, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    allowed = int(postgres.settings["max_connections"]) - 3  # superuser_reserved_connections
    database = postgres.database()
    for concurrency, lines in ((allowed - 12, 0), (allowed - 11, 1)):
        store = make_store(Settings(database=database, concurrency=concurrency))
        await store.open()
        assert sum("connections" in risk for risk in await store.risks()) == lines
        await store.close()
        assert [name for name, _ in emitted].count("connections_short") == lines
