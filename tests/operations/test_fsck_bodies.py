"""Stored payloads, compared with the fingerprints of their receipts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.operations.fsck_bodies import make_fingerprints
from oncehook.testing import deliver, post
from tests.support.encryption import ring
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.fsck import run_fsck, violations

pytestmark = pytest.mark.anyio


async def test_payload_store_and_keys_that_are_missing_are_said(
    make_inbox: Callable[..., Inbox], database: str, tmp_path: Path, rows: Rows
) -> None:
    inbox = make_inbox(keys=ring("2026a"), payload_store=f"file://{tmp_path}/objects", payload_threshold=2000)
    inbox.source("stripe", secrets=["whsec_test"], encrypt=True)
    inbox.source("plain", provider="stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        large = stripe_body("evt_large", filler="x" * 4000)
        await post(inbox, "plain", large, stripe_headers(large, "whsec_test"))
    report = await run_fsck(database)
    assert report.is_clean, violations(report)
    (bodies,) = [result for result in report.results if result.check.name == "bodies"]
    assert dict(bodies.unknown) == {"payloads whose key is not in `keys`": 1}
    ((address,),) = rows("SELECT object FROM webhook_payloads WHERE object IS NOT NULL")
    file = Path(address.removeprefix("file://"))
    file.write_bytes(b"damaged")
    assert "is damaged" in violations(await run_fsck(database))["bodies"][0]
    file.unlink()
    assert "does not exist" in violations(await run_fsck(database))["bodies"][0]


def test_fingerprint_leaves_out_what_a_provider_changes_and_is_unknown_for_other_content() -> None:
    find = make_fingerprints({})
    assert find("stripe") is not None and find("github") is None
    assert find("twilio") is None, "it signs the address and a form"
