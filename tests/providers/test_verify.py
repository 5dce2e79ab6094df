"""The verifier: keys, timestamps and the order of its checks. test_every_provider.py has the rules for all."""

import hmac
import json
import timeit
from statistics import median
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.providers.definition import Retries, built_in
from oncehook.providers.sign import sign
from oncehook.providers.verify import Verifier, load_key, seconds_of, window_of
from tests.providers.families.test_template import hexed, stripe
from tests.support.providers import (
    NOW,
    SECRET,
    changed,
    make_custom_verifier,
    make_verifier,
    rejection_reason,
    sender,
)

BODY = b'{"id":"evt_1","type":"paid"}'

# -- single schemes -------------------------------------------------------------------------------------------------


def test_stale_timestamp_is_reported_only_if_the_signature_verifies() -> None:
    old = int(NOW) - 301
    right, wrong = (stripe(f"t={old},v1={digest}") for digest in (hexed(b"%d." % old + BODY), hexed(b"other")))
    assert rejection_reason(make_verifier("stripe"), right) == "stale_timestamp"
    assert rejection_reason(make_verifier("stripe"), wrong) == "bad_signature"


def test_source_can_narrow_the_tolerance_to_zero() -> None:
    delivery = sender("stripe").compose()
    strict = make_verifier("stripe", sender("stripe").pair().verifying, settings=SourceSettings(tolerance=0.0))
    assert strict.verify(delivery, NOW) == 0
    assert (
        rejection_reason(strict, delivery, NOW + 1) == rejection_reason(strict, delivery, NOW - 1) == "stale_timestamp"
    )


# -- signatures inside the body -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "Application/X-WWW-Form-Urlencoded; charset=utf-8"]
)
@pytest.mark.parametrize("name", ["mailgun", "ses"])
def test_body_that_is_json_and_a_form_is_verified_and_read_in_the_same_format(name: str, content_type: str) -> None:
    """If they differed, an attacker could attach any event to a captured signature."""
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


def test_verified_value_of_a_repeated_key_is_the_one_that_is_read() -> None:
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
    assert rejection_reason(source.verifier, changed(genuine, body=first)) == "bad_signature"


# -- custom providers -----------------------------------------------------------------------------------------------


def test_signed_timestamp_may_be_a_number_in_the_body() -> None:
    checks = make_custom_verifier(
        {"algorithm": "hmac-sha256", "header": "X-Sig"}, timestamp={"body": "sent", "unit": "ms", "tolerance": "60s"}
    )
    for sent, reason in ((NOW, None), (NOW - 61, "stale_timestamp"), (NOW + 61, "stale_timestamp")):
        body = json.dumps({"id": "1", "type": "t", "sent": int(sent * 1000)}).encode()
        delivery = Delivery.of(body, {"X-Sig": hexed(body)})
        if reason is None:
            assert checks.verify(delivery, NOW) == 0
        else:
            assert rejection_reason(checks, delivery) == reason
    assert rejection_reason(checks, Delivery.of(BODY, {"X-Sig": hexed(BODY)})) == "bad_signature"


# -- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.system  # it measures time
def test_verify_takes_at_most_the_time_of_three_hmacs() -> None:
    body = json.dumps({"id": "evt_1", "type": "invoice.paid", "padding": "x" * 1146}).encode()
    assert len(body) == 1200
    headers, _ = sign(built_in("stripe"), body, SECRET, now=NOW)
    delivery, checks, key = Delivery.of(body, headers), make_verifier("stripe"), SECRET.encode()

    ratios = []
    for _ in range(1000):  # short and alternating, so that a busy machine slows both
        ours = timeit.timeit(lambda: checks.verify(delivery, NOW), number=10)
        ratios.append(ours / timeit.timeit(lambda: hmac.digest(key, body, "sha256"), number=10))
    assert median(ratios) <= 3


# -- GitLab: a token or a signing key -------------------------------------------------------------------------------

BASE64 = "c2VjcmV0IHRva2VuIG9mIG1pbmU="


def test_token_that_is_valid_base64_is_not_used_as_a_key() -> None:
    source = sender("gitlab").source(BASE64)
    assert source.verifier is not None
    assert source.verifier.verify(Delivery.of(BODY, {"X-Gitlab-Token": BASE64}), NOW) == 0
    signed, _ = sign(built_in("gitlab"), BODY, "whsec_" + BASE64, headers={"webhook-id": "1"}, now=NOW)
    assert "webhook-signature" in signed
    assert rejection_reason(source.verifier, Delivery.of(BODY, signed)) == "bad_signature"
    assert sign(built_in("gitlab"), BODY, BASE64, now=NOW)[0] == {"X-Gitlab-Token": BASE64}


def test_signing_key_is_never_accepted_as_a_token() -> None:
    source = sender("gitlab").source("whsec_" + BASE64)
    assert source.verifier is not None
    for sent in ("whsec_" + BASE64, BASE64):
        assert rejection_reason(source.verifier, Delivery.of(BODY, {"X-Gitlab-Token": sent})) == "bad_signature"
    signed, _ = sign(built_in("gitlab"), BODY, "whsec_" + BASE64, headers={"webhook-id": "1"}, now=NOW)
    assert source.verifier.verify(Delivery.of(BODY, signed), NOW) == 0


# -- keys and fetches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", ["", " ", "\n\t"])
@pytest.mark.parametrize("provider", ["stripe", "discord"])  # a shared secret, and a public key
def test_blank_secret_has_no_key(provider: str, secret: str) -> None:
    with pytest.raises(ValueError, match="it is empty"):
        load_key(built_in(provider).signatures[0], secret)


def test_verifier_without_a_secret_is_an_error_unless_that_is_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.secrets is empty: set the secret"):
        Verifier(built_in("stripe"), [], where="sources.stripe")
    allowed = Verifier(built_in("stripe"), [], where="sources.stripe", required=False)
    assert rejection_reason(allowed, stripe("t=1,v1=00")) == "bad_signature"


def test_secret_of_one_alternative_is_not_used_for_the_other() -> None:
    keys = make_verifier("gitlab", "whsec_" + BASE64, "a token").keys
    assert [[index for index, _ in of_alternative] for of_alternative in keys] == [[0], [1]]


def test_delivery_without_a_reported_address_is_rejected_with_that_detail() -> None:
    verifier = make_verifier("square", settings=SourceSettings(public_url=None))
    assert verifier.needs_address
    with pytest.raises(Rejected, match="no proxy in trusted_proxies reported it"):
        verifier.verify(Delivery.of(BODY, {"x-square-hmacsha256-signature": "x"}), NOW)
    with pytest.raises(Rejected, match="no signature in the request matches"):
        make_verifier("stripe").verify(stripe("t=1,v1=00"), NOW)


def test_no_key_is_fetched_for_a_provider_with_a_shared_secret() -> None:
    assert make_verifier("stripe").key_to_fetch(sender("stripe").compose(), NOW) is None


def test_stale_delivery_is_rejected_before_its_key_is_fetched() -> None:
    verifier = make_verifier("plaid", "5f3c1a:0123456789abcdef")
    delivery = sender("plaid").compose()
    assert verifier.key_to_fetch(delivery, NOW) == verifier.key_to_fetch(delivery) is not None
    with pytest.raises(Rejected, match="the timestamp is too old"):
        verifier.key_to_fetch(delivery, NOW + 3600)


@pytest.mark.parametrize(
    ("stamp", "unit", "seconds"),
    [
        (None, "s", None),
        (b"1800000000", "s", 1_800_000_000),
        (b"1800000000123", "ms", 1_800_000_000.123),
        (b"2027-01-15T08:00:00Z", "iso", 1_800_000_000),
        (b"1800000000", "iso", None),
        (b"not-a-time", "iso", None),
        (b"-1", "s", None),
        (b"1.5", "s", None),
        (b"", "s", None),
        (b"1" * 15, "s", 111_111_111_111_111),
        (b"1" * 16, "s", None),
        ("١".encode(), "s", None),
    ],
)
def test_timestamp_is_parsed_in_its_unit_only(stamp: bytes | None, unit: str, seconds: float | None) -> None:
    assert seconds_of(stamp, unit) == seconds


def test_window_of_a_timestamp_depends_on_the_provider_and_the_tolerance() -> None:
    assert window_of(built_in("github"), None) is None
    assert window_of(built_in("stripe"), None) == ("s", 300.0, 300.0)
    assert window_of(built_in("stripe"), 5.0) == ("s", 5.0, 5.0)
    assert window_of(built_in("ses"), None) == ("iso", 3600.0 + 300.0, 300.0)
    assert window_of(built_in("ses"), 1000.0) == ("iso", 3600.0 + 1000.0, 300.0)
    assert window_of(replace(built_in("ses"), retries=Retries()), None) == ("iso", 300.0, 300.0)
