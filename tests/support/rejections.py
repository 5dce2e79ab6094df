"""Rejected requests as the receiver stores them, for tests of the doctor."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.model.rows import StoredRejection
from oncehook.model.timestamps import rfc3339
from oncehook.operations.doctor import diagnose
from oncehook.providers.definition import built_in, built_in_names
from oncehook.providers.source import Source
from oncehook.receiver.rejection_samples import make_sample

BODY = json.dumps(
    {"id": "evt_1", "type": "invoice.paid", "name": "Zoë", "url": "https://a/b"}, separators=(",", ":")
).encode()
SIGN_THE_ADDRESS = [name for name in built_in_names() if any(one.covers_address for one in built_in(name).signatures)]


def make_source(name: str = "stripe", **settings: Any) -> Source:
    """Make a source that verifies with whsec_test."""
    inbox = Inbox("sqlite:///unused.db", worker=False)
    return inbox.source(name, **{"secrets": ["whsec_test"], **settings})


def make_rejection(
    source: Source, body: bytes, headers: dict[str, str], *, at: float | None = None, query: str = ""
) -> StoredRejection:
    """Verify a request that must be rejected, and return its stored sample."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    delivery = Delivery(body, pairs, query=query.encode())
    assert source.verifier is not None
    with pytest.raises(Rejected) as caught:
        source.verifier.verify(delivery, time.time() if at is None else at)
    sample = make_sample(source, delivery, caught.value)
    rejected_at = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    facts = {name: getattr(sample, name) for name in sample.__slots__}
    return StoredRejection(id=1, rejected_at=rfc3339(rejected_at) or "", **facts)


def causes(rejection: StoredRejection, source: Source, *others: Source) -> list[str]:
    """Return the causes that the doctor finds."""
    return [finding.cause for finding in diagnose(rejection, source, others)]
