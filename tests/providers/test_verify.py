"""Whether a delivery is authentic, for single schemes. tests/providers/test_every_provider.py has the rules for all."""

import base64
import hashlib
import hmac
import json
import timeit
from typing import Any
from urllib.parse import urlencode

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.providers.definition import built_in, read_provider
from oncehook.providers.families.template import TemplateCheck
from oncehook.providers.form import CONTENT_TYPE
from oncehook.providers.sign import sign
from oncehook.providers.verify import Verifier
from tests.support.providers import NOW, changed, put, sender

SECRET = "a secret of the test"
BODY = b'{"id":"evt_1","type":"paid"}'


def hexed(message: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def verifier(name: str, *secrets: str, **options: Any) -> Verifier:
    return Verifier(built_in(name), secrets or (SECRET,), where=f"sources.{name}", **options)


def refused(checks: Verifier, delivery: Delivery, now: float = NOW) -> str:
    with pytest.raises(Rejected) as caught:
        checks.verify(delivery, now)
    return caught.value.reason


# -- single schemes -------------------------------------------------------------------------------------------------


def stripe(header: str, body: bytes = BODY) -> Delivery:
    return Delivery.of(body, {"Stripe-Signature": header})


def test_stripe_takes_any_v1_and_no_other_version() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    for header in (
        f"t={stamp},v1={good}",
        f"v1={good},t={stamp}",
        f"t={stamp}, v1=bad, v0=x, v1={good}",
        f"t={stamp},,v1={good},",
    ):
        assert verifier("stripe").verify(stripe(header), NOW) == 0
    for header in (
        f"t={stamp},v0={good}", f"t={stamp},V1={good}", f"t={stamp};v1={good}", f"t={stamp},v1={good.upper()}",
        f"t={stamp},v1= {good}",
        f"t={stamp},v1=", f"t={stamp}", f"v1={good}", good, f"t={stamp},v1={good[:-1]}", f"t={stamp},v1={good}0",
        f"t={stamp}v1={good}",
    ):  # fmt: skip
        assert refused(verifier("stripe"), stripe(header)) == "bad_signature", header


def test_a_stripe_signature_with_two_timestamps_is_refused_whichever_is_signed() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    for header in (f"t={stamp},t={stamp},v1={good}", f"t={stamp},t=1,v1={good}", f"t=1,t={stamp},v1={good}"):
        assert refused(verifier("stripe"), stripe(header)) == "bad_signature"


def test_a_signature_behind_a_flood_of_other_fields_is_not_looked_for() -> None:
    stamp, good = int(NOW), hexed(b"%d." % NOW + BODY)
    flood = ",".join(["x=1"] * 10_000)
    assert refused(verifier("stripe"), stripe(f"t={stamp},{flood},v1={good}")) == "bad_signature"


def test_a_stale_delivery_is_told_apart_only_when_its_signature_is_right() -> None:
    old = int(NOW) - 301
    right, wrong = (stripe(f"t={old},v1={digest}") for digest in (hexed(b"%d." % old + BODY), hexed(b"other")))
    assert refused(verifier("stripe"), right) == "stale_timestamp"
    assert refused(verifier("stripe"), wrong) == "bad_signature"


def test_a_source_may_narrow_its_window_and_zero_does_not_open_it() -> None:
    delivery = sender("stripe").compose()
    strict = verifier("stripe", sender("stripe").pair().verifying, settings=SourceSettings(tolerance=0.0))
    assert strict.verify(delivery, NOW) == 0
    assert refused(strict, delivery, NOW + 1) == refused(strict, delivery, NOW - 1) == "stale_timestamp"


def test_both_spellings_of_shopifys_headers_verify() -> None:
    digest = base64.b64encode(hmac.digest(SECRET.encode(), BODY, "sha256")).decode()
    for name in ("X-Shopify-Hmac-SHA256", "Shopify-Hmac-Sha256"):
        assert verifier("shopify").verify(Delivery.of(BODY, {name: digest}), NOW) == 0
        assert refused(verifier("shopify"), Delivery.of(BODY + b" ", {name: digest})) == "bad_signature"


def test_standard_webhooks_covers_the_id_and_keeps_its_two_versions_apart() -> None:
    v1, v1a = sender("standard-webhooks"), sender("standard-webhooks-v1a")
    both = verifier("standard-webhooks", v1.pair().verifying, v1a.pair().verifying)
    for one, index in ((v1, 0), (v1a, 1)):
        delivery = one.compose()
        assert both.verify(delivery, NOW) == index
        assert refused(both, changed(delivery, {**delivery.headers, b"webhook-id": b"msg_other"})) == "bad_signature"
        value = delivery.headers[b"webhook-signature"]
        relabelled = value.replace(b"v1a,", b"v1,") if index else value.replace(b"v1,", b"v1a,")
        assert (
            refused(both, changed(delivery, {**delivery.headers, b"webhook-signature": relabelled})) == "bad_signature"
        )


def test_a_public_key_is_never_taken_for_a_shared_secret() -> None:
    """Or whoever knows the public key could sign with it."""
    public = sender("standard-webhooks-v1a").pair().verifying
    checks = verifier("standard-webhooks", public)
    key = base64.b64decode(public.removeprefix("whpk_"))
    message = b"msg_1.%d." % NOW + BODY
    forged = base64.b64encode(hmac.digest(key, message, "sha256")).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(NOW)), "webhook-signature": f"v1,{forged}"}
    assert refused(checks, Delivery.of(BODY, headers)) == "bad_signature"


def test_a_shared_secret_is_never_taken_for_a_public_key() -> None:
    """Thirty-two bytes of base64 would do as one: only what says whpk_ is."""
    text = base64.b64encode(b"a shared secret of thirty-two by").decode()
    for secret in (text, "whsec_" + text):
        (check,) = verifier("standard-webhooks", secret).checks
        assert isinstance(check, TemplateCheck) and isinstance(check.keys[0][1], bytes)


@pytest.mark.parametrize(
    "value",
    [
        "Basic",
        "Basic ",
        "Bearer dTpw",
        "dTpw",
        "Basic dTpw,Basic dTpw",
        "Basic dTp3",
        "Basic dTpw\x00",
        "Basic dT pw",
        "Basic ZHU6cA==",
    ],
)
def test_basic_authentication_is_taken_whole_or_not_at_all(value: str) -> None:
    assert verifier("postmark", "u:p").verify(Delivery.of(BODY, {"Authorization": "bAsIc  dTpw "}), NOW) == 0
    assert refused(verifier("postmark", "u:p"), Delivery.of(BODY, {"Authorization": value})) == "bad_signature"


@pytest.mark.parametrize("secret", ["user", "user:", ":password", " : ", ":", "user: "])
def test_a_password_without_both_its_parts_is_refused_at_start_up(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="it is not user:password"):
        verifier("postmark", secret)


# -- signatures inside the body -------------------------------------------------------------------------------------


def mailgun_fields(token: str = "t" * 50, stamp: str = str(int(NOW))) -> dict[str, str]:
    return {"timestamp": stamp, "token": token, "signature": hexed(f"{stamp}{token}".encode())}


def form(fields: dict[str, str]) -> Delivery:
    return Delivery(urlencode(fields).encode(), [(b"content-type", CONTENT_TYPE.encode())])


def test_mailguns_fields_are_taken_from_json_and_from_its_older_forms() -> None:
    checks = verifier("mailgun")
    assert checks.verify(Delivery.of(json.dumps({"signature": mailgun_fields()}).encode()), NOW) == 0
    assert checks.verify(form({"event": "delivered", **mailgun_fields()}), NOW) == 0
    content_type = f"{CONTENT_TYPE.upper()}; charset=utf-8".encode()
    shouted = Delivery(form(mailgun_fields()).body, [(b"content-type", content_type)])
    assert checks.verify(shouted, NOW) == 0
    assert checks.verify(Delivery.of(json.dumps(mailgun_fields()).encode()), NOW) == 0


def test_a_mailgun_signature_cannot_be_shifted_between_timestamp_and_token() -> None:
    fields = mailgun_fields(token="123456789" * 5)
    whole = fields["timestamp"] + fields["token"]
    for size in (*range(1, 10), *range(11, len(whole))):
        shifted = {**fields, "timestamp": whole[:size], "token": whole[size:]}
        assert refused(verifier("mailgun"), Delivery.of(json.dumps({"signature": shifted}).encode())) in (
            "bad_signature",
            "stale_timestamp",
        )


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "Application/X-WWW-Form-Urlencoded; charset=utf-8"]
)
@pytest.mark.parametrize("name", ["mailgun", "ses"])
def test_a_body_that_is_json_and_a_form_at_once_is_verified_and_read_as_the_same(name: str, content_type: str) -> None:
    """Verified as the one and read as the other, one captured signature would carry any event."""
    one = sender(name)
    genuine = one.compose()
    source = one.source()
    assert source.verifier is not None
    fields = json.loads(genuine.body)
    if name == "mailgun":
        forged = {
            "signature": {"token": "forged"},
            "event-data": {"event": "forged"},
            "token": "forged",
            "event": "forged",
        }
        fields = fields["signature"]
    else:
        forged = {**fields, "MessageId": "forged", "Message": '{"notificationType":"forged"}'}
    polyglots = [
        json.dumps({"x": "=&" + urlencode(fields) + "&y=", **forged}).encode(),
        json.dumps(
            {"x": "=&" + urlencode({"token": "forged", "event": "forged"}) + "&y=", **json.loads(genuine.body)}
        ).encode(),
    ]
    for body in polyglots:
        delivery = Delivery(body, [(b"content-type", content_type.encode())])
        try:
            source.verifier.verify(delivery, NOW)
        except Rejected:
            continue
        claims = source.read(delivery, source.parse(delivery))
        assert "forged" not in (claims[0].event_id, claims[0].type)


def test_of_a_key_that_stands_twice_the_one_that_is_verified_is_the_one_that_is_read() -> None:
    one = sender("mailgun")
    genuine = one.compose()
    token = json.loads(genuine.body)["signature"]["token"]
    forged = b'{"token":"forged","timestamp":"1","signature":"00"}'
    source = one.source()
    assert source.verifier is not None
    last = genuine.body.replace(b'{"signature"', b'{"signature":%s,"signature"' % forged, 1)
    source.verifier.verify(changed(genuine, body=last), NOW)
    assert source.read(changed(genuine, body=last), source.parse(changed(genuine, body=last)))[0].event_id == token
    first = genuine.body[:-1] + b',"signature":%s}' % forged
    assert refused(source.verifier, changed(genuine, body=first)) == "bad_signature"


@pytest.mark.parametrize("value", [None, True, 1.5, [], {}, ["x"]])
def test_a_signature_field_that_is_no_text_is_refused(value: object) -> None:
    genuine = sender("mailgun").compose()
    checks = verifier("mailgun", sender("mailgun").pair().verifying)
    for path in ("signature.signature", "signature.token", "signature.timestamp", "signature"):
        assert refused(checks, changed(genuine, body=put(genuine.body, path, value))) == "bad_signature"


# -- providers of one's own -----------------------------------------------------------------------------------------


def own(signature: dict[str, Any], **table: Any) -> Verifier:
    definition = {"event": {"id": "id", "type": "type"}, "signatures": [signature], **table}
    return Verifier(read_provider("acme", definition, "providers.acme"), [SECRET], where="sources.acme")


def test_a_plain_token_in_a_header_verifies() -> None:
    checks = own({"algorithm": "token", "header": "X-Gitlab-Token"})
    assert checks.verify(Delivery.of(BODY, {"X-Gitlab-Token": SECRET}), NOW) == 0
    assert refused(checks, Delivery.of(BODY, {"X-Gitlab-Token": SECRET[:-1]})) == "bad_signature"


def test_a_signed_timestamp_may_be_a_number_in_the_body() -> None:
    checks = own(
        {"algorithm": "hmac-sha256", "header": "X-Sig"}, timestamp={"body": "sent", "unit": "ms", "tolerance": "60s"}
    )
    for sent, reason in ((NOW, None), (NOW - 61, "stale_timestamp"), (NOW + 61, "stale_timestamp")):
        body = json.dumps({"id": "1", "type": "t", "sent": int(sent * 1000)}).encode()
        delivery = Delivery.of(body, {"X-Sig": hexed(body)})
        if reason is None:
            assert checks.verify(delivery, NOW) == 0
        else:
            assert refused(checks, delivery) == reason
    assert refused(checks, Delivery.of(BODY, {"X-Sig": hexed(BODY)})) == "bad_signature"


def test_a_header_that_a_template_names_may_not_come_twice() -> None:
    checks = own({"algorithm": "hmac-sha256", "header": "X-Sig", "template": "{header:X-Nonce}{body}"})
    headers = [(b"x-nonce", b"n"), (b"x-sig", hexed(b"n" + BODY).encode())]
    assert checks.verify(Delivery(BODY, headers), NOW) == 0
    assert refused(checks, Delivery(BODY, [(b"x-nonce", b"other"), *headers])) == "malformed"
    assert checks.verify(Delivery(BODY, [*headers, (b"x-other", b"1"), (b"x-other", b"2")]), NOW) == 0


def test_header_values_are_bytes_of_any_kind() -> None:
    checks = own({"algorithm": "hmac-sha256", "header": "X-Sig", "template": "{header:X-Name}|{body}"})
    name = "Grüße \udcff".encode("utf-8", "surrogateescape")
    assert checks.verify(Delivery(BODY, [(b"x-name", name), (b"x-sig", hexed(name + b"|" + BODY).encode())]), NOW) == 0


# -- cost -----------------------------------------------------------------------------------------------------------


def test_verifying_costs_at_most_three_bare_hmacs() -> None:
    body = json.dumps({"id": "evt_1", "type": "invoice.paid", "padding": "x" * 1146}).encode()
    assert len(body) == 1200
    headers, _ = sign(built_in("stripe"), body, SECRET, now=NOW)
    delivery, checks, key = Delivery.of(body, headers), verifier("stripe"), SECRET.encode()

    ours, bare = [], []
    for _ in range(40):  # in turn, so that a busy machine slows both alike
        ours.append(timeit.timeit(lambda: checks.verify(delivery, NOW), number=300))
        bare.append(timeit.timeit(lambda: hmac.digest(key, body, "sha256"), number=300))
    assert min(ours) <= 3 * min(bare)


# -- GitLab: a token that is sent along, or a key that signs -----------------------------------------------------------

BASE64 = "c2VjcmV0IHRva2VuIG9mIG1pbmU="


def test_a_token_that_happens_to_be_base64_is_no_key() -> None:
    source = sender("gitlab").source(BASE64)
    assert source.verifier is not None
    assert source.verifier.verify(Delivery.of(BODY, {"X-Gitlab-Token": BASE64}), NOW) == 0
    signed, _ = sign(built_in("gitlab"), BODY, "whsec_" + BASE64, headers={"webhook-id": "1"}, now=NOW)
    assert "webhook-signature" in signed
    assert refused(source.verifier, Delivery.of(BODY, signed)) == "bad_signature"
    assert sign(built_in("gitlab"), BODY, BASE64, now=NOW)[0] == {"X-Gitlab-Token": BASE64}


def test_a_key_is_never_taken_as_a_token() -> None:
    source = sender("gitlab").source("whsec_" + BASE64)
    assert source.verifier is not None
    for sent in ("whsec_" + BASE64, BASE64):
        assert refused(source.verifier, Delivery.of(BODY, {"X-Gitlab-Token": sent})) == "bad_signature"
    signed, _ = sign(built_in("gitlab"), BODY, "whsec_" + BASE64, headers={"webhook-id": "1"}, now=NOW)
    assert source.verifier.verify(Delivery.of(BODY, signed), NOW) == 0
