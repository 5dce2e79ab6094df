"""The doctor names the cause of a rejection and the action, from the stored sample, and accepts nothing."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.operations.doctor import REMEDIES, diagnose, examine
from oncehook.testing import post
from tests.support.events import stripe_body, stripe_headers
from tests.support.rejections import BODY, causes, make_rejection, make_source


@pytest.mark.parametrize(("late", "expected"), [(3600, "1h before it arrived"), (-900, "15m after it arrived")])
def test_wrong_clock_is_recognized(late: int, expected: str) -> None:
    source = make_source()
    now = float(int(time.time()))  # the timestamp is in whole seconds
    (finding,) = diagnose(make_rejection(source, BODY, stripe_headers(BODY, now=now - late), at=now), source)
    assert finding.cause == "clock" and expected in finding.shows


def test_missing_signature_header_is_named() -> None:
    source = make_source()
    (finding,) = diagnose(make_rejection(source, BODY, {}), source)
    assert finding.cause == "no signature" and "Stripe-Signature" in finding.shows


def test_wrong_password_is_recognized() -> None:
    source = make_source("postmark", secrets=["user:password"])
    assert causes(make_rejection(source, BODY, {"Authorization": "Basic dXNlcjp4"}), source) == ["token"]


@pytest.mark.parametrize(
    ("provider", "settings", "header"),
    [
        ("paypal", {"secrets": [], "webhook_id": "WH-1"}, "PAYPAL-TRANSMISSION-SIG"),
        ("plaid", {"secrets": ["client1:secret1"]}, "Plaid-Verification"),
        ("docusign", {}, "X-DocuSign-Signature-*"),
    ],
)
def test_missing_header_is_named_for_every_kind_of_signature(
    provider: str, settings: dict[str, Any], header: str
) -> None:
    source = make_source(provider, **settings)
    (finding,) = diagnose(make_rejection(source, BODY, {}), source)
    assert finding.cause == "no signature" and header in finding.shows


def test_signature_in_a_numbered_header_is_not_missing() -> None:
    source = make_source("docusign")
    assert causes(make_rejection(source, BODY, {"X-DocuSign-Signature-2": "AAAA"}), source) == ["unknown"]


def test_source_without_a_secret_is_the_cause() -> None:
    source = make_source("asana", secrets=[])
    assert causes(make_rejection(source, BODY, {"X-Hook-Signature": "00"}), source) == ["no secret"]


def test_unexplained_rejection_is_unknown() -> None:
    source = make_source()
    assert causes(make_rejection(source, BODY, stripe_headers(BODY, "whsec_unknown")), source) == ["unknown"]


def test_truncated_body_is_not_tried() -> None:
    source = make_source()
    body = stripe_body(filler="x" * 100_000)
    assert causes(make_rejection(source, body, stripe_headers(body, "whsec_unknown")), source) == ["cut"]


def test_sample_that_the_current_secrets_verify_would_be_accepted() -> None:
    source, old = make_source(), make_source(secrets=["whsec_before"])
    assert causes(make_rejection(old, BODY, stripe_headers(BODY)), source) == ["would be accepted"]


def test_every_cause_has_a_remedy_and_no_finding_shows_a_secret() -> None:
    source = make_source(secrets=["whsec_very_secret"])
    rejection = make_rejection(source, BODY, stripe_headers(BODY, "whsec_unknown"))
    assert "very_secret" not in str(diagnose(rejection, source)) and all(REMEDIES.values())


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 5000, b'{"a":NaN}', b"\x00"])
def test_every_sample_gets_a_finding(body: bytes) -> None:
    source = make_source()
    assert causes(make_rejection(source, body, stripe_headers(b"other")), source)


def test_sample_of_an_encrypted_source_shows_only_the_reason() -> None:
    source = make_source(encrypt=True)
    (finding,) = diagnose(make_rejection(source, BODY, stripe_headers(BODY, "whsec_unknown")), source)
    assert finding.cause == "encrypted" and "no signature in the request matches" in finding.shows


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("tenant", "body", "cause"),
    [
        ("acme", b'{"id":"evt_1","type":"a"}\n', "newline"),
        ("globex", b'{"id":"evt_1","type":"a"}', "unknown"),
    ],
)
async def test_sample_of_a_tenant_is_tried_with_the_secrets_of_that_tenant(
    make_inbox: Callable[..., Inbox], tenant: str, body: bytes, cause: str
) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=lambda tenant: [f"whsec_{tenant}"])
    signed = b'{"id":"evt_1","type":"a"}'
    async with inbox.lifespan():
        runtime = inbox._runtime
        assert (await post(inbox, f"stripe/{tenant}", body, stripe_headers(signed, "whsec_acme"))).status == 401
        await runtime.reception.rejection_samples.stop()
        lookups = {name: cache.lookup for name, cache in runtime.tenants.items()}
        (case,) = await examine(runtime.store, runtime.sources, lookups=lookups)
        assert case["tenant"] == tenant
        assert [finding["cause"] for finding in case["findings"]] == [cause]
        runtime.tenants.clear()
        (case,) = await examine(runtime.store, runtime.sources)
        assert [finding["cause"] for finding in case["findings"]] == ["no lookup"]
