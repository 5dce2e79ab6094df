"""The address of a payload object, and the errors of payload stores.

An address is the address of its store, a day, the SHA-256 of the object's bytes and a random part:
`s3://bucket/prefix/2026-11-17/<sha256>-<random>`. The random part makes every written object a new one. No two payloads
share an object, so an object can be deleted without asking whether another payload needs it.
"""

import hashlib
import re
import secrets
from datetime import datetime

from oncehook.model.errors import ConfigurationError, OncehookError

_STORE = re.compile(r"(?:s3://[a-z0-9][a-z0-9.-]+(?:/[^\s?#]*)?|file:///[^\s?#]+)", re.ASCII)
_OBJECT = re.compile(r"(?P<store>.+)/(?P<key>[a-z0-9-]+/(?P<digest>[0-9a-f]{64})-[0-9a-f]{16})", re.ASCII)


class ObjectError(OncehookError):
    """A payload object cannot be read. The message says why, and contains nothing of the body."""


class ObjectMissing(ObjectError):
    """The payload store has no object at the address, or its bytes are not those that were stored."""


class ObjectStoreUnavailable(ObjectError):
    """The payload store does not answer, or rejects the request. The object may be readable later."""

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after  # seconds until the store is tried again, if its circuit breaker is open


def check_store(address: str) -> str:
    """Return the address of a payload store without a trailing slash. Raises ConfigurationError if it is none."""
    path = address.partition("://")[2]
    if not _STORE.fullmatch(address) or ".." in path.split("/"):
        raise ConfigurationError(
            f'payload_store is {address!r}: expected "s3://bucket/prefix" or "file:///absolute/directory"'
        )
    return address.rstrip("/")


def new_address(store: str, data: bytes, folder: str) -> str:
    """Return a new address for an object with these bytes."""
    return f"{store}/{folder}/{hashlib.sha256(data).hexdigest()}-{secrets.token_hex(8)}"


def day_folder(now: datetime) -> str:
    """Return the folder of a day."""
    return f"{now:%Y-%m-%d}"


def split_address(address: str) -> tuple[str, str]:
    """Return the store of an object and its key there. Raises ObjectMissing if it is no address of an object."""
    match = _OBJECT.fullmatch(address)
    if match is None or not _STORE.fullmatch(match["store"]):
        raise ObjectMissing(f"{address!r} is not the address of a payload object")
    return match["store"], match["key"]


def check_bytes(address: str, data: bytes) -> bytes:
    """Return the bytes of an object. Raises ObjectMissing if they are not those that were stored."""
    match = _OBJECT.fullmatch(address)
    if match is None or hashlib.sha256(data).hexdigest() != match["digest"]:
        raise ObjectMissing(f"its payload object {address} is damaged: its bytes do not have the SHA-256 of its name")
    return data
