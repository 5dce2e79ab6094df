"""The lookup of managed tenants reads the table and decrypts the secrets."""

import pytest

from oncehook.config.keyring import KeyMissing, KeyWrong
from oncehook.config.managed_secrets import new_secrets, tenant_context
from oncehook.config.settings import Settings
from oncehook.store import make_store
from oncehook.store.rows import DirectoryChange
from oncehook.store.store import Store
from oncehook.tenants.managed import ManagedLookup
from tests.support.clocks import ManualClock
from tests.support.events import Rows
from tests.support.managed import KEY
from tests.support.stores import open_store

pytestmark = pytest.mark.anyio

LONG_AGO, SOON = "2020-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"


async def put(store: Store, tenant: str, *, is_removed: bool = False) -> None:
    secrets = new_secrets(["first"], LONG_AGO).rotated("second", LONG_AGO, SOON)
    sealed = "" if is_removed else secrets.seal(store.keys, tenant_context("stripe", tenant))
    change = DirectoryChange(secrets=sealed, action="add_tenant", detail={}, is_removed=is_removed)
    await store.directory.change_tenant("stripe", tenant, "jane", lambda row: change)


async def test_lookup_finds_the_active_secrets_of_a_tenant(database: str) -> None:
    async with open_store(database, keys=(KEY,)) as store:
        await put(store, "acme")
        assert await ManagedLookup("stripe", store).find("acme") == ("second", "first")
        after = ManualClock(4_100_000_000.0)
        assert await ManagedLookup("stripe", store, after).find("acme") == ("second",)
        assert await ManagedLookup("stripe", store).find("globex") is None
        assert await ManagedLookup("github", store).find("acme") is None


async def test_removed_tenant_is_unknown(database: str) -> None:
    async with open_store(database, keys=(KEY,)) as store:
        await put(store, "acme")
        await put(store, "acme", is_removed=True)
        assert await ManagedLookup("stripe", store).find("acme") is None


async def test_secrets_of_another_tenant_are_not_accepted(database: str, rows: Rows) -> None:
    async with open_store(database, keys=(KEY,)) as store:
        await put(store, "acme")
        await put(store, "globex")
        rows(
            "UPDATE webhook_tenants SET secrets = (SELECT secrets FROM webhook_tenants WHERE tenant = 'acme') "
            "WHERE tenant = 'globex'"
        )
        with pytest.raises(KeyWrong):
            await ManagedLookup("stripe", store).find("globex")


async def test_lookup_without_the_key_fails(database: str) -> None:
    async with open_store(database, keys=(KEY,)) as store, open_store(database) as keyless:
        await put(store, "acme")
        with pytest.raises(KeyMissing):
            await ManagedLookup("stripe", keyless).find("acme")


def test_reset_keeps_the_lookup_usable(tmp_path: object) -> None:
    lookup = ManagedLookup("stripe", make_store(Settings(database=f"sqlite:///{tmp_path}/inbox.db")))
    lookup.reset()
    assert lookup.source == "stripe"
