"""Signatures over a template of the request: Stripe, Shopify, Standard Webhooks, Mailgun, and custom definitions."""

import base64
import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError
from oncehook.providers.families.template import TemplateCheck
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.sign import sign
from tests.support.providers import (
    NOW,
    SECRET,
    changed,
    make_custom_verifier,
    make_verifier,
    put,
    rejection_reason,
    sender,
)

BODY = b'{"id":"evt_1","type":"paid"}'


def hexed(message: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def stripe(header: str, body: bytes = BODY) -> Delivery:
    return Delivery.of(body, {"Stripe-Signature": header})


def test_stripe_signature_verifies_with_any_v1_field_and_no_other_version() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    for header in (
        f"t={stamp},v1={good}",
        f"v1={good},t={stamp}",
        f"t={stamp}, v1=bad, v0=x, v1={good}",
        f"t={stamp},,v1={good},",
    ):
        assert make_verifier("stripe").verify(stripe(header), NOW) == 0
    for header in (
        f"t={stamp},v0={good}", f"t={stamp},V1={good}", f"t={stamp};v1={good}", f"t={stamp},v1={good.upper()}",
        f"t={stamp},v1= {good}",
        f"t={stamp},v1=", f"t={stamp}", f"v1={good}", good, f"t={stamp},v1={good[:-1]}", f"t={stamp},v1={good}0",
        f"t={stamp}v1={good}",
    ):  # fmt: skip
        assert rejection_reason(make_verifier("stripe"), stripe(header)) == "bad_signature", header


def test_stripe_signature_with_two_timestamps_is_rejected() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    for header in (f"t={stamp},t={stamp},v1={good}", f"t={stamp},t=1,v1={good}", f"t=1,t={stamp},v1={good}"):
        assert rejection_reason(make_verifier("stripe"), stripe(header)) == "bad_signature"


def test_signature_behind_thousands_of_other_fields_is_not_found() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    flood = ",".join(["x=1"] * 10_000)
    assert rejection_reason(make_verifier("stripe"), stripe(f"t={stamp},{flood},v1={good}")) == "bad_signature"


def test_shopify_signature_verifies_under_both_header_names() -> None:
    digest = base64.b64encode(hmac.digest(SECRET.encode(), BODY, "sha256")).decode()
    for name in ("X-Shopify-Hmac-SHA256", "Shopify-Hmac-Sha256"):
        assert make_verifier("shopify").verify(Delivery.of(BODY, {name: digest}), NOW) == 0
        assert rejection_reason(make_verifier("shopify"), Delivery.of(BODY + b" ", {name: digest})) == "bad_signature"


def test_standard_webhooks_signature_covers_the_id_and_its_version() -> None:
    v1, v1a = sender("standard-webhooks"), sender("standard-webhooks-v1a")
    both = make_verifier("standard-webhooks", v1.pair().verifying, v1a.pair().verifying)
    for one, index in ((v1, 0), (v1a, 1)):
        delivery = one.compose()
        assert both.verify(delivery, NOW) == index
        assert (
            rejection_reason(both, changed(delivery, {**delivery.headers, b"webhook-id": b"msg_other"}))
            == "bad_signature"
        )
        value = delivery.headers[b"webhook-signature"]
        relabelled = value.replace(b"v1a,", b"v1,") if index else value.replace(b"v1,", b"v1a,")
        assert (
            rejection_reason(both, changed(delivery, {**delivery.headers, b"webhook-signature": relabelled}))
            == "bad_signature"
        )


def test_public_key_is_never_used_as_a_shared_secret() -> None:
    """Otherwise anyone who knows the public key could sign with it."""
    public = sender("standard-webhooks-v1a").pair().verifying
    checks = make_verifier("standard-webhooks", public)
    key = base64.b64decode(public.removeprefix("whpk_"))
    message = b"msg_1.%d." % NOW + BODY
    forged = base64.b64encode(hmac.digest(key, message, "sha256")).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(NOW)), "webhook-signature": f"v1,{forged}"}
    assert rejection_reason(checks, Delivery.of(BODY, headers)) == "bad_signature"


def test_shared_secret_is_never_used_as_a_public_key() -> None:
    """Any 32 bytes in base64 could be a public key: only a text with whpk_ is one."""
    text = base64.b64encode(b"a shared secret of thirty-two by").decode()
    for secret in (text, "whsec_" + text):
        (check,) = make_verifier("standard-webhooks", secret).checks
        assert isinstance(check, TemplateCheck) and isinstance(check.keys[0][1], bytes)


def mailgun_fields(token: str = "t" * 50, stamp: str = str(int(NOW))) -> dict[str, str]:
    return {"timestamp": stamp, "token": token, "signature": hexed(f"{stamp}{token}".encode())}


def form(fields: dict[str, str]) -> Delivery:
    return Delivery(urlencode(fields).encode(), [(b"content-type", CONTENT_TYPE.encode())])


def test_mailgun_signature_is_read_from_json_and_from_forms() -> None:
    checks = make_verifier("mailgun")
    assert checks.verify(Delivery.of(json.dumps({"signature": mailgun_fields()}).encode()), NOW) == 0
    assert checks.verify(form({"event": "delivered", **mailgun_fields()}), NOW) == 0
    content_type = f"{CONTENT_TYPE.upper()}; charset=utf-8".encode()
    shouted = Delivery(form(mailgun_fields()).body, [(b"content-type", content_type)])
    assert checks.verify(shouted, NOW) == 0
    assert checks.verify(Delivery.of(json.dumps(mailgun_fields()).encode()), NOW) == 0


def test_mailgun_signature_does_not_verify_if_timestamp_and_token_are_split_elsewhere() -> None:
    fields = mailgun_fields(token="123456789" * 5)
    whole = fields["timestamp"] + fields["token"]
    for size in (*range(1, 10), *range(11, len(whole))):
        shifted = {**fields, "timestamp": whole[:size], "token": whole[size:]}
        assert rejection_reason(make_verifier("mailgun"), Delivery.of(json.dumps({"signature": shifted}).encode())) in (
            "bad_signature",
            "stale_timestamp",
        )


@pytest.mark.parametrize("value", [None, True, 1.5, [], {}, ["x"]])
def test_signature_field_that_is_not_a_string_is_rejected(value: object) -> None:
    genuine = sender("mailgun").compose()
    checks = make_verifier("mailgun", sender("mailgun").pair().verifying)
    for path in ("signature.signature", "signature.token", "signature.timestamp", "signature"):
        assert rejection_reason(checks, changed(genuine, body=put(genuine.body, path, value))) == "bad_signature"


def test_token_in_a_header_verifies() -> None:
    checks = make_custom_verifier({"algorithm": "token", "header": "X-Gitlab-Token"})
    assert checks.verify(Delivery.of(BODY, {"X-Gitlab-Token": SECRET}), NOW) == 0
    assert rejection_reason(checks, Delivery.of(BODY, {"X-Gitlab-Token": SECRET[:-1]})) == "bad_signature"


def test_repeated_header_of_a_template_is_malformed() -> None:
    checks = make_custom_verifier({"algorithm": "hmac-sha256", "header": "X-Sig", "template": "{header:X-Nonce}{body}"})
    headers = [(b"x-nonce", b"n"), (b"x-sig", hexed(b"n" + BODY).encode())]
    assert checks.verify(Delivery(BODY, headers), NOW) == 0
    assert rejection_reason(checks, Delivery(BODY, [(b"x-nonce", b"other"), *headers])) == "malformed"
    assert checks.verify(Delivery(BODY, [*headers, (b"x-other", b"1"), (b"x-other", b"2")]), NOW) == 0


def test_signed_header_may_hold_any_bytes() -> None:
    checks = make_custom_verifier({"algorithm": "hmac-sha256", "header": "X-Sig", "template": "{header:X-Name}|{body}"})
    name = "Grüße \udcff".encode("utf-8", "surrogateescape")
    assert checks.verify(Delivery(BODY, [(b"x-name", name), (b"x-sig", hexed(name + b"|" + BODY).encode())]), NOW) == 0


def test_timestamp_header_beside_signature_fields_is_covered() -> None:
    fields = {
        "algorithm": "hmac-sha256",
        "header": "X-Sig",
        "fields": ",",
        "field": "v1",
        "template": "{timestamp}.{body}",
    }
    verifier = make_custom_verifier(fields, timestamp={"header": "X-Time"})
    headers = {"X-Sig": f"v0=x,v1={hexed(b'%d.' % NOW + BODY)}", "X-Time": str(int(NOW))}
    assert verifier.verify(Delivery.of(BODY, headers), NOW) == 0
    assert rejection_reason(verifier, Delivery.of(BODY, {**headers, "X-Time": str(int(NOW) + 1)})) == "bad_signature"


def test_signature_field_without_a_timestamp_is_signed_and_verifies() -> None:
    fields = {"algorithm": "hmac-sha256", "header": "X-Sig", "fields": ",", "field": "v1"}
    verifier = make_custom_verifier(fields)
    headers, _ = sign(verifier.provider, BODY, SECRET, now=NOW)
    assert headers == {"X-Sig": f"v1={hexed(BODY)}"}
    assert verifier.verify(Delivery.of(BODY, headers), NOW) == 0


def test_template_of_an_element_cannot_cover_the_address() -> None:
    with pytest.raises(ConfigurationError, match=r"which has no \{url\}"):
        make_custom_verifier({"algorithm": "hmac-sha256", "each": "items", "body": "sig", "template": "{url}"})


def test_repeated_numbered_signature_header_is_malformed() -> None:
    verifier = make_custom_verifier({"algorithm": "hmac-sha256", "header": "X-Sig-*"})
    good = hexed(BODY).encode()
    assert verifier.verify(Delivery(BODY, [(b"x-sig-1", b"x"), (b"x-sig-2", good)]), NOW) == 0
    assert rejection_reason(verifier, Delivery(BODY, [(b"x-sig-2", good), (b"x-sig-2", good)])) == "malformed"
    assert rejection_reason(verifier, Delivery(BODY, [(b"x-sig-first", good)])) == "bad_signature"
