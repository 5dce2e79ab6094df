"""Ends every fault test with a check of its databases."""

from collections.abc import Iterator

import pytest

from tests.support.fsck import assert_fsck_is_clean, is_reachable
from tests.support.servers import Postgres


@pytest.fixture(autouse=True)
def fsck_at_the_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the databases of the test with `oncehook fsck`. Those whose server the test has stopped are left out."""
    addresses: list[str] = [request.getfixturevalue("database")] if "database" in request.fixturenames else []
    make, drop, dropped = Postgres.database, Postgres.drop_later, list[tuple[Postgres, str]]()

    def database(server: Postgres, *, migrated: bool = False) -> str:
        addresses.append(make(server, migrated=migrated))
        return addresses[-1]

    monkeypatch.setattr(Postgres, "database", database)
    monkeypatch.setattr(Postgres, "drop_later", lambda server, address: dropped.append((server, address)))
    yield
    try:
        for address in addresses:
            if is_reachable(address):
                assert_fsck_is_clean(address)
    finally:
        for server, address in dropped:
            drop(server, address)
