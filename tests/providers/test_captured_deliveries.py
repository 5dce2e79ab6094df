"""A captured delivery that is sent again, in any spelling that its signature allows, is a duplicate."""

import base64
import hashlib
import hmac
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import jwt
from oncehook.providers.expressions import headers_of, templates_of
from oncehook.providers.sign import sign
from tests.support import ROOT
from tests.support.providers import NOW, SENDERS, Sender, changed, put, sender
from tests.support.receiver import serving_source

pytestmark = pytest.mark.anyio
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def assert_duplicates(one: Sender, captured: Delivery, variants: dict[str, Delivery], folder: Path) -> None:
    async with serving_source(folder, one) as here:
        assert (await here.send(captured)).status_code == 202
        for name, variant in {"the same bytes": captured, **variants}.items():
            assert (await here.send(variant)).status_code == 200, name
        assert await here.receipts() == 1


async def assert_refused(one: Sender, variants: dict[str, Delivery], folder: Path) -> None:
    async with serving_source(folder, one) as here:
        for name, variant in variants.items():
            assert (await here.send(variant)).status_code == 401, name


def signed(one: Sender, body: bytes, query: str = "") -> Delivery:
    settings = one.settings()
    if query:
        settings = replace(settings, public_url=f"{settings.public_url}?{query}")
    headers, content = sign(one.provider, body, one.pair().signing, headers=FORM, now=NOW, settings=settings)
    return Delivery.of(content, headers)


# -- Plaid ----------------------------------------------------------------------------------------------------------


async def test_plaid_event_id_does_not_depend_on_the_spelling_of_the_signature(tmp_path: Path) -> None:
    one = sender("plaid")
    captured = one.compose()
    message, _, signature = captured.headers[b"plaid-verification"].rpartition(b".")
    raw = jwt.decode_part(signature)
    mirrored = raw[:32] + (ORDER - int.from_bytes(raw[32:])).to_bytes(32)
    other = {**captured.headers, b"plaid-verification": message + b"." + jwt.encode(mirrored)}
    await assert_duplicates(one, captured, {"the mirrored signature": changed(captured, other)}, tmp_path)


async def test_plaid_token_in_another_spelling_is_rejected(tmp_path: Path) -> None:
    one = sender("plaid")
    captured = one.compose()
    token = captured.headers[b"plaid-verification"]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = bytes([alphabet[alphabet.index(token[-1:]) | 1]])
    spellings = {"padding": token + b"==", "spare bits": token[:-1] + spare, "a blank": token + b" "}
    message, _, signature = token.rpartition(b".")
    plain = base64.b64encode(jwt.decode_part(signature)).rstrip(b"=")
    if plain != signature:
        spellings["the other alphabet"] = message + b"." + plain
    variants = {
        name: changed(captured, {**captured.headers, b"plaid-verification": value}) for name, value in spellings.items()
    }
    await assert_refused(one, variants, tmp_path)


# -- Twilio ---------------------------------------------------------------------------------------------------------


async def test_twilio_callback_in_another_order_or_spelling_is_a_duplicate(tmp_path: Path) -> None:
    one = sender("twilio")
    captured = signed(one, b"CallSid=CA1&CallStatus=ringing&To=%2B18005551212&From=%2B14158675309")
    variants = {
        "another order": b"To=%2B18005551212&From=%2B14158675309&CallStatus=ringing&CallSid=CA1",
        "another spelling": b"CallSid=CA1&CallStatus=r%69nging&To=%2b18005551212&From=%2B14158675309",
        "a field twice": captured.body + b"&CallSid=CA1",
    }
    forms = {name: changed(captured, body=body) for name, body in variants.items()}
    await assert_duplicates(one, captured, forms, tmp_path)


async def test_twilio_callback_whose_fields_are_split_elsewhere_is_a_duplicate(tmp_path: Path) -> None:
    one = sender("twilio")
    fields = {"Body": "hiCallStatuscompleted", "MessageSid": "SM1", "MessageStatus": "delivered", "To": "+18005551212"}
    captured = signed(one, urlencode(fields).encode())
    cut = {"Body": "hi", "CallStatus": "completed", "MessageSid": "SM1", "MessageStatusd": "elivered"}
    longer = {"Body": "hiCallStatuscompleted", "MessageSid": "SM1", "MessageStatus": "deliveredTo+18005551212"}
    variants = {
        "another status": changed(captured, body=urlencode(cut | {"To": "+18005551212"}).encode()),
        "a longer status": changed(captured, body=urlencode(longer).encode()),
    }
    await assert_duplicates(one, captured, variants, tmp_path)


async def test_twilio_callback_whose_fields_move_into_the_query_is_a_duplicate(tmp_path: Path) -> None:
    one = sender("twilio")
    captured = signed(one, b"AccountSid=AC1&CallSid=CA1&CallStatus=ringing", query="tenant=5")
    variants = {
        "the same bytes": ("?tenant=5", captured.body),
        "a field": ("?tenant=5AccountSidAC1", b"CallSid=CA1&CallStatus=ringing"),
        "a part of a name": ("?tenant=5Acc", b"ountSid=AC1CallSidCA1CallStatusringing"),
        "the query into a field": ("", b"%3Ftenant=%3D5&" + captured.body),
    }
    async with serving_source(tmp_path, one) as here:
        assert (await here.send(captured, "?tenant=5")).status_code == 202
        for name, (query, body) in variants.items():
            assert (await here.send(changed(captured, body=body), query)).status_code == 200, name
        assert await here.receipts() == 1


async def test_twilio_message_text_with_a_body_hash_does_not_verify_another_body(tmp_path: Path) -> None:
    """An attacker who sends an SMS gets a signature over an address that contains the text of the SMS."""
    one = sender("twilio")
    forged = b'{"EventType":"paid","AccountSid":"AC1"}'
    text = f"hi&bodySHA256={hashlib.sha256(forged).hexdigest()}&"
    captured = signed(one, urlencode({"AccountSid": "AC1", "Body": text, "To": "+18005551212"}).encode(), "tenant=5")
    query = f"?tenant=5AccountSidAC1Body{text}To+18005551212"
    other = {**captured.headers, b"content-type": b"application/json"}
    async with serving_source(tmp_path, one) as here:
        assert (await here.send(captured, "?tenant=5")).status_code == 202
        assert (await here.send(changed(captured, other, body=forged), query)).status_code == 401


async def test_twilio_json_body_that_is_sent_again_as_a_form_is_rejected(tmp_path: Path) -> None:
    one = sender("twilio")
    body = b'{"EventType":"onMessageAdded","Body":"a=b"}'
    query = f"tenant=5&bodySHA256={hashlib.sha256(body).hexdigest()}"
    address = f"{one.settings().public_url}?{query}".encode()
    signature = base64.b64encode(hmac.digest(one.pair().signing.encode(), address, "sha1")).decode()
    captured = Delivery.of(body, {"X-Twilio-Signature": signature, "Content-Type": "application/json"})
    async with serving_source(tmp_path, one) as here:
        assert (await here.send(captured, f"?{query}")).status_code == 202
        as_form = {**captured.headers, b"content-type": b"application/x-www-form-urlencoded"}
        assert (await here.send(changed(captured, as_form), f"?{query}")).status_code == 401


async def test_twilio_inputs_of_one_call_are_separate_events(tmp_path: Path) -> None:
    one = sender("twilio")
    async with serving_source(tmp_path, one) as here:
        for digits in (b"1", b"2"):
            delivery = signed(one, b"CallSid=CA1&CallStatus=in-progress&Digits=" + digits)
            assert (await here.send(delivery)).status_code == 202


# -- Adyen ----------------------------------------------------------------------------------------------------------


async def test_adyen_item_whose_fields_are_split_elsewhere_is_a_duplicate(tmp_path: Path) -> None:
    """Adyen joins the signed fields with colons, and a merchant's reference may contain one."""
    one = sender("adyen")
    item: dict[str, Any] = {"pspReference": "881", "merchantAccountCode": "Shop", "merchantReference": "order:7"}
    item |= {"amount": {"value": 1000, "currency": "EUR"}, "eventCode": "AUTHORISATION", "success": "true"}
    body = msgspec.json.encode({"notificationItems": [{"NotificationRequestItem": item}]})
    headers, content = sign(one.provider, body, one.pair().signing, now=NOW)
    captured = Delivery.of(content, headers)
    cuts: dict[str, dict[str, Any]] = {
        "another reference": {
            "pspReference": "881:", "originalReference": "Shop", "merchantAccountCode": "order",
            "merchantReference": "7",
        },
        "another event": {
            "merchantReference": "order", "amount": {"value": 7, "currency": "1000"}, "eventCode": "EUR",
            "success": "AUTHORISATION:true",
        },
    }  # fmt: skip
    async with serving_source(tmp_path, one) as here:
        assert (await here.send(captured)).status_code == 200
        for name, fields in cuts.items():
            body = content
            for field, value in fields.items():
                body = put(body, f"notificationItems.0.NotificationRequestItem.{field}", value)
            assert (await here.send(changed(captured, body=body))).status_code == 200, name
        assert await here.receipts() == 1


# -- Braintree ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "xml",
    [
        b"<notification><timestamp>2027-01-15T08:00:00Z</timestamp><kind>check</kind><subject/></notification>",
        b"<notification><timestamp>2027-01-15T08:00:00Z</timestamp></notification>",  # fails: no kind
    ],
)
async def test_braintree_form_with_other_fields_is_a_duplicate(xml: bytes, tmp_path: Path) -> None:
    one = sender("braintree")
    captured = signed(one, xml)
    fields = parse_qsl(captured.body.decode())
    payload = dict(fields)["bt_payload"]
    assert payload.endswith("\n")
    without = [(name, value.rstrip("\n") if name == "bt_payload" else value) for name, value in fields]
    variants = {
        "another field": captured.body + b"&a=1",
        "another order": urlencode(fields[::-1]).encode(),
        "without the line end": urlencode(without).encode(),
        "another signature beside it": captured.body.replace(b"bt_signature=", b"bt_signature=other%7Cabc%26"),
    }
    forms = {name: changed(captured, body=body) for name, body in variants.items()}
    await assert_duplicates(one, captured, forms, tmp_path)


# -- Mandrill -------------------------------------------------------------------------------------------------------


async def test_mandrill_form_with_truncated_events_is_one_failed_receipt(tmp_path: Path) -> None:
    """Fields are signed without a separator, so the signature does not cover where a name ends."""
    one = sender("mandrill")
    first = signed(one, urlencode({"mandrill_event": 's[{"event":"send"}]'}).encode())
    second = changed(first, body=urlencode({"mandrill_events[{": '"event":"send"}]'}).encode())
    await assert_duplicates(one, first, {"cut at another place": second}, tmp_path)


# -- unsigned facts -------------------------------------------------------------------------------------------------

SIGNING = [one for one in SENDERS if not one.signature.family.sends_secret(one.signature)]


def documented() -> dict[str, dict[str, str]]:
    """The table in docs/verify.md: provider → fact → its header."""
    page = (ROOT / "docs" / "verify.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page.partition("## What is not signed")[2], re.MULTILINE)
    return {
        name: {fact: header.lower() for fact, header in re.findall(r"(id|type) \(`([^`]+)`", text)}
        for name, text in rows
    }


def renamed(one: Sender, delivery: Delivery) -> dict[str, dict[str, Delivery]]:
    """Deliveries that differ in one header, still verify, and have another id or type: fact → header → delivery."""
    source, facts = one.source(), one.provider.event
    assert source.verifier is not None
    found: dict[str, dict[str, Delivery]] = {}
    names = headers_of([*templates_of(facts.id), *templates_of(facts.type), *facts.kinds])
    for name in names & delivery.headers.keys():
        other = changed(delivery, {**delivery.headers, name: b"revocation"})
        try:
            source.verifier.verify(other, NOW)
        except Rejected:
            continue
        before, after = (source.read(each, source.parse(each))[0] for each in (delivery, other))
        if before.event_id != after.event_id:
            found.setdefault("id", {})[name.decode()] = other
        if before.type != after.type:
            found.setdefault("type", {})[name.decode()] = other
    return found


@pytest.mark.parametrize("one", SIGNING, ids=str)
def test_facts_that_an_unsigned_header_can_change_are_documented(one: Sender) -> None:
    changes = {fact: set(headers) for fact, headers in renamed(one, one.compose()).items()}
    expected = documented().get(one.provider.name, {})
    assert changes == {fact: {header} for fact, header in expected.items()}
    if expected:
        assert any(
            "not the type" in note or "An attacker who captures a delivery" in note for note in one.provider.notes
        )


@pytest.mark.parametrize("name", [name for name, facts in documented().items() if "id" in facts])
async def test_captured_delivery_is_a_duplicate_if_the_id_is_the_hash_of_the_content(name: str, tmp_path: Path) -> None:
    one = sender(name)
    captured = one.compose()
    variants = {
        f"{fact} {header}": other for fact, by in renamed(one, captured).items() for header, other in by.items()
    }
    async with serving_source(tmp_path, one, id="content:sha256") as here:
        assert (await here.send(captured)).is_success
        for what, variant in variants.items():
            assert (await here.send(variant)).status_code == 200, what
            assert await here.receipts() == 1, what


@pytest.mark.parametrize(
    ("status", "header", "type_"),
    [
        ("enabled", b"notification", "channel.follow"),
        ("enabled", b"revocation", "channel.follow"),
        ("authorization_revoked", b"revocation", "revocation"),
        ("authorization_revoked", b"notification", "revocation"),
        ("a_status_of_tomorrow", b"revocation", "revocation"),
    ],
)
def test_twitch_type_comes_from_the_signed_body(status: str, header: bytes, type_: str) -> None:
    one = sender("twitch")
    genuine = one.compose("channel.follow")
    headers = {**genuine.headers, b"twitch-eventsub-message-type": header}
    headers[b"twitch-eventsub-subscription-type"] = b"another.type"
    delivery = changed(genuine, headers, body=put(genuine.body, "subscription.status", status))
    source = one.source()
    (claim,) = source.read(delivery, source.parse(delivery))
    assert claim.type == type_
