"""Cross-checks with vendors' libraries whose signature covers more than the body."""

import base64
import hashlib
import json
import time
import warnings
from typing import Any
from urllib.parse import parse_qs, urlencode

import jwt
import pytest
from Adyen.util import generate_notification_sig, is_valid_hmac_notification, is_valid_hmac_payload
from cloudevents.core.bindings.http import from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from discord_interactions import verify_key
from hubspot.exceptions import InvalidSignatureTimestampError
from hubspot.utils.signature import Signature as HubSpot
from paddle_billing.Notifications import Secret, Verifier
from razorpay.utility import Utility
from square.utils.webhooks_helper import verify_signature as square_accepts
from twilio.request_validator import RequestValidator

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.sign import sign
from tests.support.providers import OPTIONS, PUBLIC_URL, sender

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library uses what it deprecates
    import braintree

FORM = "application/x-www-form-urlencoded"
BODY = '{"id":"evt_1","text":"café ☃ \\u2665","type":"t"}'


def now() -> int:
    return int(time.time())


def ours_accepts(name: str, body: str | bytes, headers: dict[str, str], *secrets: str, query: str = "") -> bool:
    source = sender(name).source(*secrets)
    content = body.encode() if isinstance(body, str) else body
    pairs = [(key.lower().encode(), value.encode("latin-1")) for key, value in headers.items()]
    assert source.verifier is not None
    try:
        return source.verifier.verify(Delivery(content, pairs, query=query.encode()), now()) == 0
    except Rejected:
        return False


def ours_signs(name: str, body: str, secret: str, **headers: str) -> tuple[dict[str, str], bytes]:
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    settings = SourceSettings(public_url=PUBLIC_URL, webhook_id=str(OPTIONS["webhook_id"]))
    return sign(sender(name).provider, body.encode(), secret, headers=given, now=now(), settings=settings)


# -- Twilio ---------------------------------------------------------------------------------------------------------

TWILIO = "12345678901234567890123456789012"
FIELDS = {"CallSid": "CA1", "Digits": "1234", "From": "+14158675309", "Caller": "Grüße", "Body": ""}
OTHER_ADDRESSES = [PUBLIC_URL, PUBLIC_URL.replace("example.com", "example.com:443"), PUBLIC_URL + "?foo=1&bar=2"]


@pytest.mark.parametrize("address", OTHER_ADDRESSES)
def test_oncehook_accepts_a_form_that_twilios_library_signs(address: str) -> None:
    signature = RequestValidator(TWILIO).compute_signature(address, FIELDS)
    headers = {"X-Twilio-Signature": signature, "Content-Type": FORM}
    query = address.partition("?")[2]
    assert ours_accepts("twilio", urlencode(FIELDS), headers, TWILIO, query=query)
    assert not ours_accepts("twilio", urlencode({**FIELDS, "Digits": "1235"}), headers, TWILIO, query=query)
    assert not ours_accepts("twilio", urlencode(FIELDS), headers, TWILIO, query=query + "&x=1")


def test_oncehook_accepts_json_that_twilios_library_signs_for_that_body_only() -> None:
    validator = RequestValidator(TWILIO)
    query = f"bodySHA256={hashlib.sha256(BODY.encode()).hexdigest()}"
    signature = validator.compute_signature(f"{PUBLIC_URL}?{query}", {})
    headers = {"X-Twilio-Signature": signature, "Content-Type": "application/json"}
    assert validator.validate(f"{PUBLIC_URL}?{query}", BODY, signature)
    assert ours_accepts("twilio", BODY, headers, TWILIO, query=query)
    assert not ours_accepts("twilio", BODY + " ", headers, TWILIO, query=query)
    assert not ours_accepts("twilio", BODY, headers, TWILIO, query=f"{query}&{query}")
    as_form = {**headers, "Content-Type": FORM}
    assert not ours_accepts("twilio", "", as_form, TWILIO, query=query)


def test_twilios_library_accepts_what_oncehook_signs() -> None:
    headers, body = ours_signs("twilio", urlencode(FIELDS), TWILIO, Content_Type=FORM)
    validator = RequestValidator(TWILIO)
    assert validator.validate(PUBLIC_URL, FIELDS, headers["X-Twilio-Signature"])
    assert not validator.validate(PUBLIC_URL, {**FIELDS, "Digits": "1"}, headers["X-Twilio-Signature"])
    assert body.decode() == urlencode(FIELDS)


def test_empty_token_that_twilios_library_accepts_is_a_configuration_error() -> None:
    assert RequestValidator("").validate(PUBLIC_URL, FIELDS, RequestValidator("").compute_signature(PUBLIC_URL, FIELDS))
    with pytest.raises(Exception, match="is empty"):
        sender("twilio").source("")


# -- Square, Razorpay, Paddle, Discord ------------------------------------------------------------------------------


def test_squares_library_accepts_what_oncehook_signs() -> None:
    headers, _ = ours_signs("square", BODY, "a key")
    value = headers["x-square-hmacsha256-signature"]
    check: dict[str, Any] = {"signature_header": value, "signature_key": "a key", "notification_url": PUBLIC_URL}
    assert square_accepts(request_body=BODY, **check)
    assert not square_accepts(request_body=BODY + " ", **check)
    assert not square_accepts(request_body=BODY, **check | {"notification_url": PUBLIC_URL + "/"})


def test_razorpays_library_accepts_what_oncehook_signs() -> None:
    headers, _ = ours_signs("razorpay", BODY, "a key")
    assert Utility().verify_webhook_signature(BODY, headers["X-Razorpay-Signature"], "a key")
    with pytest.raises(Exception, match="Signature"):
        Utility().verify_webhook_signature(BODY + " ", headers["X-Razorpay-Signature"], "a key")


class Request:
    """The parts of a request that Paddle's library reads."""

    def __init__(self, body: str, headers: dict[str, str]) -> None:
        self.body = body.encode()
        self.headers = headers
        self.content = None
        self.data = None


def test_paddles_library_accepts_what_oncehook_signs() -> None:
    headers, _ = ours_signs("paddle", BODY, "pdl_ntfset_x")
    assert Verifier(300).verify(Request(BODY, headers), Secret("pdl_ntfset_x"))
    assert not Verifier(300).verify(Request(BODY + " ", headers), Secret("pdl_ntfset_x"))


def test_discords_library_accepts_what_oncehook_signs() -> None:
    pair = sender("discord").pair()
    headers, _ = ours_signs("discord", BODY, pair.signing)
    public = base64.b64decode(pair.verifying)[-32:].hex()  # as Discord shows it: the raw key without its DER header
    check = (headers["X-Signature-Ed25519"], headers["X-Signature-Timestamp"], public)
    assert verify_key(BODY.encode(), *check)
    assert not verify_key(BODY.encode() + b" ", *check)
    assert ours_accepts("discord", BODY, headers, public)


# -- HubSpot --------------------------------------------------------------------------------------------------------


def hubspot_signs(body: str, address: str, stamp: int) -> dict[str, str]:
    value = HubSpot.get_signature("a secret", body, "v3", address, "POST", str(stamp))
    return {"X-HubSpot-Signature-v3": value, "X-HubSpot-Request-Timestamp": str(stamp)}


@pytest.mark.parametrize("query", ["", "a=1&b=2", "a=x%20y"])
def test_oncehook_accepts_what_hubspots_library_signs(query: str) -> None:
    address = f"{PUBLIC_URL}?{query}" if query else PUBLIC_URL
    headers = hubspot_signs(BODY, address, now() * 1000)
    assert ours_accepts("hubspot", BODY, headers, "a secret", query=query)
    assert not ours_accepts("hubspot", BODY + " ", headers, "a secret", query=query)
    assert not ours_accepts("hubspot", BODY, headers, "a secret", query=query + "&x=1")


def test_hubspots_library_accepts_what_oncehook_signs() -> None:
    headers, _ = ours_signs("hubspot", BODY, "a secret")
    value, stamp = headers["X-HubSpot-Signature-v3"], headers["X-HubSpot-Request-Timestamp"]
    check: dict[str, Any] = {"http_uri": PUBLIC_URL, "signature_version": "v3", "timestamp": stamp}
    assert HubSpot.is_valid(value, "a secret", BODY, **check)
    assert not HubSpot.is_valid(value, "a secret", BODY + " ", **check)
    with pytest.raises(InvalidSignatureTimestampError):
        HubSpot.is_valid(value, "a secret", BODY, **{**check, "timestamp": str((now() - 400) * 1000)})


def test_future_timestamp_that_hubspots_library_accepts_is_stale() -> None:
    later = (now() + 86400) * 1000
    headers = hubspot_signs(BODY, PUBLIC_URL, later)
    value = headers["X-HubSpot-Signature-v3"]
    assert HubSpot.is_valid(value, "a secret", BODY, PUBLIC_URL, signature_version="v3", timestamp=str(later))
    assert not ours_accepts("hubspot", BODY, headers, "a secret")


# -- Adyen ----------------------------------------------------------------------------------------------------------

ADYEN = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"


def item(reference: str = "order-1", **changes: Any) -> dict[str, Any]:
    return {
        "pspReference": "7914073381342284",
        "merchantReference": reference,
        "merchantAccountCode": "ExampleShop",
        "amount": {"currency": "EUR", "value": 1130},
        "eventCode": "AUTHORISATION",
        "success": "true",
        **changes,
    }


def notification(*items: dict[str, Any]) -> dict[str, Any]:
    return {"live": "false", "notificationItems": [{"NotificationRequestItem": one} for one in items]}


@pytest.mark.parametrize("reference", ["order-1", "a:b", "a\\b", "a/b", "Grüße ☃", ""])
def test_adyens_library_and_oncehook_accept_each_others_signatures(reference: str) -> None:
    one = item(reference, originalReference="x")
    signed = {**one, "additionalData": {"hmacSignature": generate_notification_sig(one, ADYEN).decode()}}
    assert ours_accepts("adyen", json.dumps(notification(signed)), {}, ADYEN)
    _, body = ours_signs("adyen", json.dumps(notification(one)), ADYEN)
    assert is_valid_hmac_notification(json.loads(body)["notificationItems"][0]["NotificationRequestItem"], ADYEN)


def test_oncehook_verifies_the_second_item_that_adyens_library_ignores() -> None:
    one = item()
    signed = {**one, "additionalData": {"hmacSignature": generate_notification_sig(one, ADYEN).decode()}}
    forged = {**signed, "pspReference": "forged"}
    assert is_valid_hmac_notification(notification(signed, forged), ADYEN)
    assert not ours_accepts("adyen", json.dumps(notification(signed, forged)), {}, ADYEN)
    assert not ours_accepts("adyen", json.dumps(notification(forged, signed)), {}, ADYEN)
    assert not ours_accepts("adyen", json.dumps(notification(signed, one)), {}, ADYEN)
    assert ours_accepts("adyen", json.dumps(notification(signed, signed)), {}, ADYEN)


def test_platform_webhook_of_adyen_is_signed_as_a_whole() -> None:
    from Adyen.util import generate_payload_sig

    headers = {"HmacSignature": generate_payload_sig(BODY.encode(), ADYEN).decode()}
    assert is_valid_hmac_payload(headers["HmacSignature"], ADYEN, BODY.encode())
    assert ours_accepts("adyen", BODY, headers, ADYEN)
    assert not ours_accepts("adyen", BODY + " ", headers, ADYEN)


# -- Braintree ------------------------------------------------------------------------------------------------------

GATEWAY = braintree.BraintreeGateway(
    braintree.Configuration(
        braintree.Environment.Development, "merchant", *sender("braintree").pair().signing.split("|")
    )
)
KINDS = [
    braintree.WebhookNotification.Kind.SubscriptionWentPastDue,
    braintree.WebhookNotification.Kind.DisputeOpened,
    braintree.WebhookNotification.Kind.TransactionSettled,
    braintree.WebhookNotification.Kind.Check,
]


@pytest.mark.parametrize("kind", KINDS)
def test_oncehook_accepts_and_reads_what_braintrees_library_signs(kind: str) -> None:
    fields = GATEWAY.webhook_testing.sample_notification(kind, "my_id")
    body = urlencode(fields).encode()
    assert ours_accepts("braintree", body, {"Content-Type": FORM})
    source = sender("braintree").source()
    delivery = Delivery.of(body, {"Content-Type": FORM})
    (claim,) = source.read(delivery, source.parse(delivery))
    assert claim.type == kind and claim.occurred_at is not None
    assert claim.object_id == (None if kind == "check" else "my_id")
    public, other = (sender("braintree").pair(number).signing.partition("|")[0].encode() for number in (0, 1))
    assert not ours_accepts("braintree", body.replace(public, other), {"Content-Type": FORM})


def test_braintrees_library_accepts_what_oncehook_signs() -> None:
    time_ = "<timestamp type='datetime'>2027-01-15T08:00:00Z</timestamp>"
    xml = f"<notification>{time_}<kind>check</kind><subject/></notification>"
    _, body = ours_signs("braintree", xml, sender("braintree").pair().signing)
    fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    assert GATEWAY.webhook_notification.parse(fields["bt_signature"], fields["bt_payload"]).kind == "check"
    with pytest.raises(braintree.exceptions.InvalidSignatureError):
        GATEWAY.webhook_notification.parse(fields["bt_signature"], "A" + fields["bt_payload"])


# -- Plaid ----------------------------------------------------------------------------------------------------------


def token(claims: dict[str, Any], **header: Any) -> str:
    key = load_pem_private_key(sender("plaid").pair().signing.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "k1", **header})


def claims_for(body: str, issued: int | None = None) -> dict[str, Any]:
    return {"iat": issued or now(), "request_body_sha256": hashlib.sha256(body.encode()).hexdigest()}


def test_pyjwt_and_oncehook_accept_each_others_tokens_for_plaid() -> None:
    headers = {"Plaid-Verification": token(claims_for(BODY))}
    assert ours_accepts("plaid", BODY, headers)
    assert not ours_accepts("plaid", BODY + " ", headers)
    signed, _ = ours_signs("plaid", BODY, sender("plaid").pair().signing)
    key = load_pem_private_key(sender("plaid").pair().signing.encode(), None)
    decoded = jwt.decode(signed["Plaid-Verification"], key.public_key(), algorithms=["ES256"])  # type: ignore[arg-type]
    assert decoded["request_body_sha256"] == claims_for(BODY)["request_body_sha256"]


def test_token_of_another_algorithm_is_rejected() -> None:
    public = sender("plaid").pair().verifying
    claims = claims_for(BODY)
    forged = [
        jwt.encode(claims, None, algorithm="none", headers={"kid": "k1"}),  # type: ignore[arg-type]
        jwt.encode(claims, public, algorithm="HS256", headers={"kid": "k1"}),
        token(claims, kid="../../x"),
        token(claims, kid="a" * 65),
        token({**claims, "iat": "now"}),
        token({"iat": now()}),
        token({**claims, "request_body_sha256": "é"}),
        token(claims) + ".x",
        token(claims)[:-2],
        token(claims).replace(".", ".."),
        token(claims_for(BODY, now() - 400)),
        token(claims_for(BODY, now() + 400)),
    ]
    for value in forged:
        assert not ours_accepts("plaid", BODY, {"Plaid-Verification": value}), value


# -- CloudEvents ----------------------------------------------------------------------------------------------------

BEARER = {"Authorization": f"Bearer {sender('cloudevents').pair().verifying}"}


@pytest.mark.parametrize("id_", ["1", "Euro € 😀", "a b", 'a"b', "100%", "a|b"])
@pytest.mark.parametrize("to_http", [to_binary_event, to_structured_event], ids=["binary", "structured"])
def test_oncehook_reads_what_the_cloudevents_library_writes(to_http: Any, id_: str) -> None:
    attributes = {"id": id_, "source": "/shop/ä", "type": "com.example.paid", "specversion": "1.0", "subject": "s"}
    message = to_http(CloudEvent(attributes, {"total": 1}))
    source = sender("cloudevents").source()
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    delivery = Delivery.of(body, {**message.headers, **BEARER})
    (claim,) = source.read(delivery, source.parse(delivery))
    escaped = id_.replace("%", "%25").replace("|", "%7C")
    assert (claim.event_id, claim.type, claim.object_id) == (f"/shop/ä|{escaped}", "com.example.paid", "s")
    assert from_http_event(message).get_id() == id_
