"""For every provider and any input, `verify` raises nothing but Rejected, and claims are safe to store."""

import json
import random
from functools import cache
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.source import Source
from tests.support.counts import MUTATED, count
from tests.support.providers import NOW, SENDERS, Sender, sender

every = pytest.mark.parametrize("sender", SENDERS, ids=str)
FAMILIES = (
    "stripe mailgun ses postmark sendgrid twilio adyen microsoft-graph braintree paypal plaid cloudevents docusign"
)
one_of_each_family = pytest.mark.parametrize("sender", [sender(name) for name in FAMILIES.split()], ids=str)
quick = settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

# -- mutated deliveries ---------------------------------------------------------------------------------------------

pytestmark = pytest.mark.system  # this takes long

ODD_JSON = [
    b"", b" ", b"null", b"true", b"0", b'""', b"[]", b"{}", b"[[]]", b'[null,1,"a",{},[]]', b"NaN", b"-Infinity",
    b"1e400",
    b"-0", b"1" * 5000, b'{"id":' + b"9" * 5000 + b"}", b'"\\ud800"', b'{"\\ud800":"\\udfff"}', b'{"id":"\\u0000"}',
    b"[" * 100_000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 100_000, b'{"id":"a","id":"b"}', b'{"id":{"id":{"id":1}}}',
    b'[{"sg_event_id":"a","event":"b"},' + b"[" * 2000 + b"]" * 2000 + b"]", b'[{"a":"\xff"},{"b":1}]', b"[,]", b"[1,]",
    b'"{\\"id\\":\\"inner\\"}"', b'{"signature":"{}"}', b'{"Type":["Notification"],"SignatureVersion":{}}',
    b'{"Type":"Notification","Message":1,"Signature":"","SignatureVersion":"2"}', b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"bt_signature=a|b&bt_payload=PCE=", b"bt_payload=" + b"A" * 5000, b"mandrill_events=%5B1%5D",
    b'{"notificationItems":[]}', b'{"notificationItems":[{"NotificationRequestItem":1},null]}', b'{"value":[{}]}',
    b'{"value":{"clientState":1}}', b'{"events":[1,"a",null]}', b'{"entry":[[]]}', b'{"data":{"events":{}}}',
    b"a=b&c=d", b"payload=%7B%7D", b"payload=%ff", b"&", b"a=" + b"%" * 100, b"&".join([b"a=b"] * 1500),
]  # fmt: skip
SHORT_ODD_JSON = [body for body in ODD_JSON if len(body) < 5000]
ODD_VALUES = [
    b"", b" ", b"=", b",", b"t=,v1=", b"t=1,v1=a" * 40, b"v1,", b"v1a,", b"sha256=", b"v0=", b"Basic", b"Basic =",
    b"Basic  ",
    b"basic " + b"A" * 4000, b"\xff\xfe", "ü١".encode(), b"\x00", b"a" * 70_000, b"v1,A " * 40, b"9" * 30, b"-1",
    b"1e9999",
    b"a.b.c", b"eyJhbGciOiJub25lIn0.e30.", b"." * 5000, b'"\\', b"%C3%28", b"application/cloudevents-batch+json",
    b"application/x-www-form-urlencoded", b"APPLICATION/X-WWW-FORM-URLENCODED; charset=latin-1", b"text/plain",
]  # fmt: skip

ODD_QUERIES = [
    b"&", b"=", b"a", b"%", b"%ff=%00", b"bodySHA256=", b"bodySHA256=%ff", b"bodySHA256=a&bodySHA256=b", b"a=" * 300,
    b"validationToken=x", b"hub.mode=subscribe&hub.verify_token=%ff", b"crc_token=%22", b"challenge=%0d%0a", b"a%3a=b",
]  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
documents = values.map(lambda value: json.dumps(value).encode())


@st.composite
def mutations(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes with a piece removed, a piece inserted, or one bit flipped."""
    start = draw(st.integers(0, len(original)))
    end = draw(st.integers(start, min(len(original), start + 40)))
    piece = draw(
        st.binary(max_size=12) | st.sampled_from([b'"', b"\\", b"{", b"[", b"\xff", b"\\u0000", b"=", b"\r\n"])
    )
    return original[:start] + piece + original[end:]


@st.composite
def deliveries(draw: st.DrawFn, sender: Sender) -> Delivery:
    """Anything from an authentic delivery with one flipped bit to noise in the signature headers."""
    genuine = composed(sender)
    body = draw(
        st.just(genuine.body)
        | mutations(genuine.body)
        | documents
        | st.sampled_from(ODD_JSON)
        | st.binary(max_size=200)
    )
    headers = dict(genuine.headers)
    for name in draw(st.lists(st.sampled_from(names(sender)), max_size=3)):
        was = headers.get(name, b"")
        headers[name] = draw(mutations(was) | st.sampled_from(ODD_VALUES) | st.binary(max_size=60))
    pairs = list(headers.items())
    if draw(st.integers(0, 9)) == 0:
        pairs.append(draw(st.sampled_from(pairs)))
    query = draw(st.sampled_from(ODD_QUERIES) | st.binary(max_size=30)) if draw(st.integers(0, 4)) == 0 else b""
    return Delivery(body, pairs, method=draw(st.sampled_from(["POST", "PUT", ""])), query=query)


@cache
def composed(sender: Sender) -> Delivery:
    return sender.compose()


@cache
def names(sender: Sender) -> list[bytes]:
    return sorted({*composed(sender).headers, b"content-type", b"authorization", b"traceparent"})


@cache
def source_of(sender: Sender) -> Source:
    return sender.source(correlation="id")


# -- the property ---------------------------------------------------------------------------------------------------


@one_of_each_family
@quick
@given(data=st.data())
def test_verify_and_read_raise_nothing_but_rejected(sender: Sender, data: st.DataObject) -> None:
    assert_nothing_but_rejected(sender, data.draw(deliveries(sender)))


def assert_nothing_but_rejected(sender: Sender, delivery: Delivery) -> None:
    source = source_of(sender)
    assert source.verifier is not None
    try:
        assert source.verifier.verify(delivery, NOW) == 0
    except Rejected as error:
        assert error.reason in ("bad_signature", "stale_timestamp", "malformed")
    try:
        source.verifier.key_to_fetch(delivery)
    except Rejected:
        pass
    source.handshake_of(delivery, source.provider.handshakes)
    try:  # read it as if it were authentic: a provider may send it one day
        claims = source.read(delivery, source.parse(delivery))
    except Rejected as error:
        assert error.reason == "malformed"
    else:
        for claim in claims:
            assert_safe_to_keep(claim)


# -- the same with a faster generator -------------------------------------------------------------------------------

SAMPLE, WHOLE = 100, 200_000


@every
def test_mutated_deliveries_of_every_provider_raise_nothing_but_rejected(sender: Sender) -> None:
    fuzz(sender, SAMPLE, seed=20261115)


@pytest.mark.torture
@every
def test_two_hundred_thousand_mutated_deliveries_raise_nothing_but_rejected(sender: Sender) -> None:
    number = WHOLE // len(SENDERS) + 1
    fuzz(sender, number, seed=None)
    count(MUTATED, number)


def fuzz(sender: Sender, deliveries: int, seed: int | None) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    rng = random.Random(f"{seed} {sender}")
    for number in range(deliveries):
        delivery = mutated(sender, rng)
        try:
            assert_nothing_but_rejected(sender, delivery)
        except BaseException as error:
            error.add_note(f"seed {seed}, number {number}: {delivery.body[:300]!r} {delivery.headers!r}")
            raise


def mutated(sender: Sender, rng: random.Random) -> Delivery:
    """An authentic delivery with changes to some bytes, headers or the query, or with another body."""
    genuine = composed(sender)
    body = genuine.body
    if rng.random() < 0.2:
        body = rng.choice(SHORT_ODD_JSON)
    elif rng.random() < 0.7:
        body = disturbed(body, rng)
    headers = dict(genuine.headers)
    for _ in range(rng.randrange(3)):
        name = rng.choice(names(sender))
        headers[name] = disturbed(headers.get(name, b""), rng) if rng.random() < 0.7 else rng.choice(ODD_VALUES)
    pairs = list(headers.items())
    if rng.random() < 0.05:
        pairs.append(rng.choice(pairs))
    query = rng.choice(ODD_QUERIES) if rng.random() < 0.1 else b""
    return Delivery(body, pairs, query=query)


PIECES = [
    b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"=", b"&", b"%", b"\xff", b"\\u0000", b"\r\n", b"null", b"0", b"|",
]  # fmt: skip


def disturbed(original: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(len(original) + 1)
        end = min(len(original), start + rng.choice((0, 0, 1, 1, 2, 8, 40)))
        piece = rng.choice(PIECES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(6))
        original = original[:start] + piece + original[end:]
    return original


@every
def test_unusual_body_is_rejected_or_stored_but_never_an_internal_error(sender: Sender) -> None:
    source = source_of(sender)
    for body, content_type in product(ODD_JSON, (b"application/json", b"application/x-www-form-urlencoded")):
        delivery = Delivery(body, {**composed(sender).headers, b"content-type": content_type}.items())
        try:
            claims = source.read(delivery, source.parse(delivery))
        except Rejected as error:
            assert error.reason == "malformed"
        else:
            for claim in claims:
                assert_safe_to_keep(claim)


def assert_safe_to_keep(claim: Claim) -> None:
    texts = (claim.event_id, claim.type, claim.object_id, claim.delivery_id, claim.correlation_id)
    assert claim.event_id and claim.event_id.strip()
    assert claim.type is not None or claim.last_error is not None
    for text in texts:
        if text is not None:
            encoded = text.encode()  # raises for a lone surrogate
            assert len(encoded) <= 255 and b"\x00" not in encoded
    assert len(claim.fingerprint) == 32
    assert isinstance(json.loads(claim.headers), dict)
    if claim.occurred_at is not None:
        assert claim.occurred_at.tzinfo is not None
