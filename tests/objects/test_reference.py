"""Addresses of payload objects."""

import hashlib
from datetime import UTC, datetime

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.objects.reference import (
    ObjectMissing,
    ObjectStoreUnavailable,
    check_bytes,
    check_store,
    day_folder,
    new_address,
    split_address,
)


@pytest.mark.parametrize("store", ["s3://bucket", "s3://my.bucket/a/b", "file:///var/lib/payloads"])
def test_address_contains_store_folder_and_digest_and_is_always_new(store: str) -> None:
    folder = day_folder(datetime(2026, 11, 17, tzinfo=UTC))
    first, second = (new_address(check_store(store + "/"), b"body", folder) for _ in range(2))
    assert first != second, "two objects with the same bytes have two addresses"
    assert first.startswith(f"{store}/2026-11-17/{hashlib.sha256(b'body').hexdigest()}-")
    assert split_address(first) == (store, first.removeprefix(f"{store}/"))
    assert check_bytes(first, b"body") == b"body"
    with pytest.raises(ObjectMissing, match="is damaged"):
        check_bytes(first, b"bodies")


@pytest.mark.parametrize(
    "store", ["", "bucket", "s3:bucket", "s3://", "s3://UPPER/x", "file://relative", "https://x/y", "file:///a/../b"]
)
def test_store_that_is_no_address_is_a_configuration_error(store: str) -> None:
    with pytest.raises(ConfigurationError, match="payload_store is"):
        check_store(store)


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "s3://bucket/key", "/etc/passwd", "http://x/2026/" + "a" * 64]
)
def test_address_without_a_digest_is_never_read(address: str) -> None:
    with pytest.raises(ObjectMissing, match="is not the address of a payload object"):
        split_address(address)


def test_unavailable_store_says_when_to_try_again() -> None:
    assert ObjectStoreUnavailable("down", retry_after=3.0).retry_after == 3.0
