"""Signing deliveries as each provider does."""

import base64
import hashlib
import hmac
import json

import pytest

from oncehook.model.delivery import Delivery
from oncehook.providers.definition import built_in, read_provider
from oncehook.providers.sign import sign
from oncehook.providers.verify import Verifier
from tests.support.providers import NOW, pem_of, sender

BODY = b'{"id":"evt_1","type":"paid"}'
SECRET = "a secret of the test"
STAMP = str(int(NOW))


def hexed(message: bytes) -> str:
    return hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("stripe", {"Stripe-Signature": f"t={STAMP},v1={hexed(STAMP.encode() + b'.' + BODY)}"}),
        ("github", {"X-Hub-Signature-256": f"sha256={hexed(BODY)}"}),
        ("shopify", {"X-Shopify-Hmac-SHA256": base64.b64encode(bytes.fromhex(hexed(BODY))).decode()}),
        (
            "slack",
            {"X-Slack-Request-Timestamp": STAMP, "X-Slack-Signature": f"v0={hexed(f'v0:{STAMP}:'.encode() + BODY)}"},
        ),
        ("sesmetric", {"X-SESMetric-Timestamp": STAMP, "X-SESMetric-Signature": hexed(STAMP.encode() + b"." + BODY)}),
    ],
)
def test_sign_returns_the_providers_headers_and_the_unchanged_body(name: str, headers: dict[str, str]) -> None:
    signed, body = sign(built_in(name), BODY, SECRET, headers={"X-Other": "kept"}, now=NOW)
    assert signed == {"X-Other": "kept", **headers}
    assert body is BODY


def test_postmark_gets_the_password() -> None:
    signed, body = sign(built_in("postmark"), BODY, "user:pass", now=NOW)
    assert signed == {"Authorization": "Basic " + base64.b64encode(b"user:pass").decode()} and body is BODY


def test_mailguns_signature_is_put_into_the_body() -> None:
    fields = {"timestamp": STAMP, "token": "t"}
    _, body = sign(built_in("mailgun"), json.dumps({"signature": fields, "event-data": 1}).encode(), SECRET, now=NOW)
    assert json.loads(body) == {"signature": {**fields, "signature": hexed(f"{STAMP}t".encode())}, "event-data": 1}


@pytest.mark.parametrize("version", ["1", "2"])
def test_sns_is_signed_in_the_version_that_the_body_asks_for(version: str) -> None:
    one = sender("ses")
    fields = json.loads(one.compose().body) | {"SignatureVersion": version}
    _, body = sign(one.provider, json.dumps(fields).encode(), one.pair().signing, now=NOW)
    assert json.loads(body)["SignatureVersion"] == version
    source = one.source(pem_of().decode())
    assert source.verifier is not None and source.verifier.verify(Delivery.of(body), NOW) == 0


def test_private_key_signs_the_asymmetric_version() -> None:
    v1a = sender("standard-webhooks-v1a")
    signed, _ = sign(v1a.provider, BODY, v1a.pair().signing, headers={"webhook-id": "msg_1"}, now=NOW)
    assert signed["webhook-signature"].startswith("v1a,")
    v1 = sender("standard-webhooks")
    signed, _ = sign(v1.provider, BODY, v1.pair().signing, headers={"Webhook-Id": "msg_1"}, now=NOW)
    assert signed["webhook-signature"].startswith("v1,")


@pytest.mark.parametrize("unit", ["s", "ms", "iso"])
def test_timestamp_is_written_in_the_unit_of_its_provider(unit: str) -> None:
    provider = read_provider(
        "acme",
        {
            "event": {"id": "id", "type": "type"},
            "signatures": [{"algorithm": "hmac-sha256", "header": "X-Sig", "template": "{timestamp}|{body}"}],
            "timestamp": {"header": "X-Time", "unit": unit},
        },
        "providers.acme",
    )
    signed, body = sign(provider, BODY, SECRET, now=NOW + 0.25)
    assert signed["X-Time"] == {"s": STAMP, "ms": f"{STAMP}250", "iso": "2027-01-15T08:00:00.250Z"}[unit]
    checks = Verifier(provider, [SECRET], where="sources.acme")
    assert checks.verify(Delivery.of(body, signed), NOW) == 0


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b"not JSON", b'{"signature":"text"}', b"{}"])
def test_body_that_cannot_hold_its_signature_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        sign(built_in("mailgun"), body, SECRET, now=NOW)
    with pytest.raises(ValueError, match=r"."):
        sign(built_in("ses"), body, sender("ses").pair().signing, now=NOW)


def test_missing_header_that_the_signature_covers_is_an_error() -> None:
    with pytest.raises(ValueError, match="lacks a part"):
        sign(built_in("standard-webhooks"), BODY, sender("standard-webhooks").pair().signing, now=NOW)


def test_error_about_a_secret_that_cannot_sign_never_quotes_it() -> None:
    for name, secret in (("sendgrid", "canary"), ("standard-webhooks", "whsec_canary!"), ("stripe", "")):
        with pytest.raises(ValueError, match="it is ") as caught:
            sign(built_in(name), BODY, secret, headers={"webhook-id": "1"}, now=NOW)
        assert "canary" not in str(caught.value)
