"""Payload objects in S3, or in a store with the API of S3. Needs the extra `aws`.

Region, credentials and endpoint come from AWS's own environment variables and files, as for every AWS client.
"""

import asyncio
import base64
import hashlib
import os
from typing import Any

from oncehook.brokers.aws import AwsClient, mapped_errors
from oncehook.model.errors import BrokerUnavailable
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable

MISSING = ("NoSuchKey", "404")
"""The codes of an object that does not exist. A client without `s3:ListBucket` gets `AccessDenied` instead."""

CONNECTIONS = 32
"""How many requests run at the same time."""


class S3Objects:
    """Implements `ObjectBackend` on a bucket."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._bucket, _, prefix = store.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._opening: asyncio.Task[AwsClient] | None = None

    async def check(self) -> None:
        await self._call("head_bucket")

    async def write(self, key: str, data: bytes) -> None:
        """Write an object. S3 compares its SHA-256 before it answers."""
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        await self._call("put_object", Key=self._prefix + key, Body=data, ChecksumSHA256=checksum)

    async def read(self, key: str) -> bytes:
        try:
            response = await self._call("get_object", Key=self._prefix + key)
            with mapped_errors("s3", "get_object"):
                async with response["Body"] as stream:
                    data: bytes = await stream.read()
                    return data
        except BrokerUnavailable as error:
            raise ObjectStoreUnavailable(f"{self._store}: {error.detail}") from None

    async def delete(self, key: str) -> None:
        await self._call("delete_object", Key=self._prefix + key)

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            client = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(client[0], AwsClient):
                await client[0].close()

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        client = await self._connected()
        try:
            return await client.call(operation, Bucket=self._bucket, **parameters)
        except BrokerUnavailable as error:
            if operation == "get_object" and error.code in MISSING:
                address = f"{self._store}/{parameters['Key'].removeprefix(self._prefix)}"
                raise ObjectMissing(f"its payload object {address} does not exist") from None
            raise ObjectStoreUnavailable(f"{self._store}: {error.detail}") from None

    async def _connected(self) -> AwsClient:
        """Return the open client. A caller that runs out of time does not interrupt the opening."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(_open_client())
        return await asyncio.shield(self._opening)


async def _open_client() -> AwsClient:
    # Most stores with the API of S3 know buckets only as the first part of the path.
    style = "path" if {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & os.environ.keys() else "auto"
    client = AwsClient(
        "s3", needed_by="payload_store", attempts=2, connections=CONNECTIONS, s3={"addressing_style": style}
    )
    await client.open()
    return client
