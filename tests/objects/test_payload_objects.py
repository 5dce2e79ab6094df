"""Payload objects within limits: time, slots, and a circuit breaker."""

import asyncio
import shutil
from pathlib import Path

import pytest

from oncehook.http_client.circuit_breaker import FAILURES
from oncehook.model.errors import ConfigurationError
from oncehook.objects import payload_objects
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from tests.support.aws import Moto, environment
from tests.support.payload_stores import BucketStore, FolderStore
from tests.support.proxy import proxied

pytestmark = pytest.mark.anyio


async def test_bytes_are_put_read_and_deleted_by_their_address(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "payloads")
    objects = PayloadObjects(lambda: store.address)
    await objects.check()
    first, second = await objects.put(b"body"), await objects.put(b"body", folder="intake")
    assert first != second and "/intake/" in second
    assert await objects.get(first) == await objects.get(second) == b"body"
    assert await objects.delete([first, first]) == [first, first]
    with pytest.raises(ObjectMissing):
        await objects.get(first)
    assert await objects.get(second) == b"body", "no two addresses share an object"
    await objects.close()
    assert await objects.get(second) == b"body", "a closed store opens again"
    await objects.close()


async def test_object_of_a_store_that_was_configured_before_stays_readable(tmp_path: Path) -> None:
    setting = f"file://{tmp_path}/old"
    objects = PayloadObjects(lambda: setting)
    address = await objects.put(b"body")
    setting = f"file://{tmp_path}/new"
    assert await objects.get(address) == b"body"
    await objects.close()


async def test_put_without_a_configured_store_is_a_configuration_error() -> None:
    objects = PayloadObjects(lambda: None)
    await objects.check()
    with pytest.raises(ConfigurationError, match="payload_store is not set"):
        await objects.put(b"body")


async def test_address_that_is_no_object_is_deleted_already() -> None:
    assert await PayloadObjects(lambda: None).delete(["nonsense"]) == ["nonsense"]


async def test_store_that_fails_again_and_again_is_not_asked_for_a_while(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "payloads")
    objects = PayloadObjects(lambda: store.address)
    address = await objects.put(b"body")
    shutil.move(store.folder, tmp_path / "elsewhere")
    for _ in range(FAILURES):
        with pytest.raises(ObjectStoreUnavailable) as caught:
            await objects.get(address)
        assert caught.value.retry_after is None
    with pytest.raises(ObjectStoreUnavailable, match=r"the circuit breaker of .* is open") as caught:
        await objects.get(address)
    assert caught.value.retry_after is not None and caught.value.retry_after > 0
    assert await objects.delete([address]) == [], "an object that may exist is not reported as deleted"
    await objects.close()


async def test_store_that_does_not_answer_costs_a_bounded_time(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BucketStore(moto)
    async with proxied(f"{moto.url}/") as (proxy, url):
        for name, value in environment(url.rstrip("/")).items():
            monkeypatch.setenv(name, value)
        objects = PayloadObjects(lambda: store.address)
        proxy.stall()
        with monkeypatch.context() as patch:
            patch.setattr(payload_objects, "WRITE_SECONDS", 0.1)
            async with asyncio.timeout(5):
                with pytest.raises(ObjectStoreUnavailable, match=r"did not answer within 0\.1 s"):
                    await objects.put(b"body")
        proxy.flow()
        address = await objects.put(b"other")
        assert store.objects()[address] == b"other"
        await objects.close()
