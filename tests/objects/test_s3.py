"""Payload objects in S3, by the stand-in for AWS."""

import sys

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.objects.s3 import S3Objects
from tests.support.aws import Moto, environment
from tests.support.payload_stores import BucketStore
from tests.support.servers import free_port

pytestmark = pytest.mark.anyio


async def test_object_is_written_below_the_prefix_read_and_deleted(aws: Moto) -> None:
    store = BucketStore(aws)
    objects = S3Objects(store.address)
    await objects.check()
    await objects.write("day/one", b"\x00\xff")
    assert store.objects() == {f"{store.address}/day/one": b"\x00\xff"}
    assert await objects.read("day/one") == b"\x00\xff"
    await objects.delete("day/one")
    await objects.delete("day/one")
    with pytest.raises(ObjectMissing, match=f"its payload object {store.address}/day/one does not exist"):
        await objects.read("day/one")
    await objects.close()


async def test_bucket_that_does_not_exist_is_unavailable_and_its_objects_are_not_missing(aws: Moto) -> None:
    objects = S3Objects("s3://no-such-bucket")
    for attempt in (objects.check(), objects.write("day/one", b"x"), objects.read("day/one")):
        with pytest.raises(ObjectStoreUnavailable, match="s3://no-such-bucket: "):
            await attempt
    await objects.close()


async def test_refused_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    objects = S3Objects("s3://bucket")
    with pytest.raises(ObjectStoreUnavailable, match="the connection was refused"):
        await objects.read("day/one")
    await objects.close()


async def test_missing_client_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.config", None)
    with pytest.raises(ConfigurationError, match=r"payload_store needs its client: pip install 'oncehook\[aws\]'"):
        await S3Objects("s3://bucket").check()
