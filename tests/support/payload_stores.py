"""Payload stores of each kind for tests, and the objects in them, independent of the code under test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]

from oncehook import Inbox
from tests.support.aws import Moto
from tests.support.events import STRIPE_SECRET, stripe_body

THRESHOLD = 1000
"""Bodies with more bytes are stored in the payload store."""

KINDS = ["directory", "s3"]


class FolderStore:
    """A payload store in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"file://{folder}"

    def objects(self) -> dict[str, bytes]:
        """The bytes of all objects by their addresses."""
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        return {f"file://{file}": file.read_bytes() for file in files}

    def replace(self, address: str, data: bytes) -> None:
        Path(address.removeprefix("file://")).write_bytes(data)

    def remove(self, address: str) -> None:
        Path(address.removeprefix("file://")).unlink()


class BucketStore:
    """A payload store in a bucket of the stand-in for AWS."""

    def __init__(self, moto: Moto) -> None:
        self.bucket = moto.bucket()
        self.address = f"s3://{self.bucket}/some/prefix"
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=moto.url,
            region_name="eu-central-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def objects(self) -> dict[str, bytes]:
        """The bytes of all objects by their addresses."""
        listed = self._client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return {f"s3://{self.bucket}/{row['Key']}": self._get(row["Key"]) for row in listed}

    def _get(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def replace(self, address: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=self._key(address), Body=data)

    def remove(self, address: str) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=self._key(address))

    def _key(self, address: str) -> str:
        return address.removeprefix(f"s3://{self.bucket}/")


PayloadStore = FolderStore | BucketStore


def large_body(event_id: str, **fields: Any) -> bytes:
    """A Stripe event that is larger than THRESHOLD."""
    return stripe_body(event_id, **{"note": "Zanzibar-4711 " * 200, **fields})


def large_inbox(
    make_inbox: Callable[..., Inbox], store: PayloadStore, *, types: list[str] | None = None, **settings: Any
) -> Inbox:
    """An inbox with a Stripe source whose large bodies are in this payload store."""
    inbox = make_inbox(payload_store=store.address, payload_threshold=THRESHOLD, **settings)
    options: Any = {} if types is None else {"types": types}
    inbox.source("stripe", secrets=[STRIPE_SECRET], encrypt="keys" in settings, **options)
    return inbox
