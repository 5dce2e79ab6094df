"""A captured delivery that is sent again, spelled in any other way that its signature allows, is a duplicate."""

import base64
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest

from oncehook.providers import plaid
from oncehook.receipt import Delivery
from oncehook.sign import sign
from tests.conformance.test_every_provider_at_the_door import door
from tests.senders import NOW, Sender, changed, sender

pytestmark = pytest.mark.anyio
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def assert_duplicates(one: Sender, captured: Delivery, variants: dict[str, Delivery], folder: Path) -> None:
    async with door(folder, one) as here:
        assert (await here.send(captured)).status_code == 202
        for name, variant in {"the same bytes": captured, **variants}.items():
            assert (await here.send(variant)).status_code == 200, name
        assert await here.receipts() == 1


async def assert_refused(one: Sender, variants: dict[str, Delivery], folder: Path) -> None:
    async with door(folder, one) as here:
        for name, variant in variants.items():
            assert (await here.send(variant)).status_code == 401, name


def signed(one: Sender, body: bytes) -> Delivery:
    headers, content = sign(one.provider, body, one.pair().signing, headers=FORM, now=NOW, **one.signed_too())
    return Delivery.of(content, headers)


# -- Plaid ----------------------------------------------------------------------------------------------------------


async def test_plaid_the_signature_of_a_token_is_not_a_part_of_the_id(tmp_path: Path) -> None:
    one = sender("plaid")
    captured = one.compose()
    message, _, signature = captured.headers[b"plaid-verification"].rpartition(b".")
    raw = plaid.decode_part(signature)
    mirrored = raw[:32] + (ORDER - int.from_bytes(raw[32:])).to_bytes(32)
    other = {**captured.headers, b"plaid-verification": message + b"." + plaid.encode(mirrored)}
    await assert_duplicates(one, captured, {"the mirrored signature": changed(captured, other)}, tmp_path)


async def test_plaid_a_token_has_one_spelling(tmp_path: Path) -> None:
    one = sender("plaid")
    captured = one.compose()
    token = captured.headers[b"plaid-verification"]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = bytes([alphabet[alphabet.index(token[-1:]) | 1]])
    spellings = {"padding": token + b"==", "spare bits": token[:-1] + spare, "a blank": token + b" "}
    message, _, signature = token.rpartition(b".")
    plain = base64.b64encode(plaid.decode_part(signature)).rstrip(b"=")
    if plain != signature:
        spellings["the other alphabet"] = message + b"." + plain
    variants = {
        name: changed(captured, {**captured.headers, b"plaid-verification": value}) for name, value in spellings.items()
    }
    await assert_refused(one, variants, tmp_path)


@pytest.mark.parametrize("part", [b"QUI=", b"QUJ", b"QU J", b"+/+/", b"QUI\n", b"Q"])
def test_a_part_of_a_token_has_one_spelling(part: bytes) -> None:
    with pytest.raises(ValueError, match="base64"):
        plaid.decode_part(part)
    assert plaid.decode_part(b"QUI") == b"AB" and plaid.decode_part(b"-_-_") == b"\xfb\xff\xbf"


# -- Twilio ---------------------------------------------------------------------------------------------------------


async def test_twilio_a_call_in_any_order_and_spelling_is_one_event(tmp_path: Path) -> None:
    one = sender("twilio")
    captured = signed(one, b"CallSid=CA1&CallStatus=ringing&To=%2B18005551212&From=%2B14158675309")
    variants = {
        "another order": b"To=%2B18005551212&From=%2B14158675309&CallStatus=ringing&CallSid=CA1",
        "another spelling": b"CallSid=CA1&CallStatus=r%69nging&To=%2b18005551212&From=%2B14158675309",
        "a field twice": captured.body + b"&CallSid=CA1",
    }
    forms = {name: changed(captured, body=body) for name, body in variants.items()}
    await assert_duplicates(one, captured, forms, tmp_path)


async def test_twilio_fields_that_are_cut_elsewhere_are_the_same_event(tmp_path: Path) -> None:
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


async def test_twilio_what_a_caller_enters_twice_in_one_call_are_two_events(tmp_path: Path) -> None:
    one = sender("twilio")
    async with door(tmp_path, one) as here:
        for digits in (b"1", b"2"):
            delivery = signed(one, b"CallSid=CA1&CallStatus=in-progress&Digits=" + digits)
            assert (await here.send(delivery)).status_code == 202


# -- Braintree ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "xml",
    [
        b"<notification><timestamp>2027-01-15T08:00:00Z</timestamp><kind>check</kind><subject/></notification>",
        b"<notification><timestamp>2027-01-15T08:00:00Z</timestamp></notification>",  # no kind: it fails, once
    ],
)
async def test_braintree_what_stands_beside_the_payload_makes_no_new_event(xml: bytes, tmp_path: Path) -> None:
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


async def test_mandrill_a_form_whose_events_are_cut_off_fails_once_however_it_is_cut(tmp_path: Path) -> None:
    """Fields are signed without anything between name and value, so where a name ends is not signed."""
    one = sender("mandrill")
    first = signed(one, urlencode({"mandrill_event": 's[{"event":"send"}]'}).encode())
    second = changed(first, body=urlencode({"mandrill_events[{": '"event":"send"}]'}).encode())
    await assert_duplicates(one, first, {"cut at another place": second}, tmp_path)
