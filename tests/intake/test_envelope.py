"""A message that the receiver publishes: sealed with the key ring, bound to its source, without credentials."""

import base64

import pytest

from oncehook.config.keyring import KeyRing
from oncehook.config.settings import SourceSettings
from oncehook.intake.envelope import PREFIX, Envelope, make_envelope, seal, unseal
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers.source import Source
from tests.support.events import STRIPE_SECRET
from tests.support.intake import keys

ENVELOPE = Envelope(
    source="stripe",
    id="0123",
    received_at=1.5,
    body=b"\x00\xff",
    headers=[(b"content-type", b"application/json")],
    tenant="acme",
    query=b"a=b",
    address="https://example.com/webhooks/stripe",
)


@pytest.mark.parametrize("ring", [keys(), keys("2026b", "2026a")])
def test_unsealed_envelope_is_the_one_that_was_sealed(ring: KeyRing) -> None:
    message = seal(ENVELOPE, ring)
    assert unseal(message, "stripe", keys("2026a", "2026b"), trusted=False) == ENVELOPE
    assert message.isascii() and b"acme" not in base64.b64decode(message.rpartition(b":")[2])


def test_delivery_of_an_envelope_is_the_one_that_was_received() -> None:
    delivery = ENVELOPE.delivery()
    assert (delivery.body, delivery.query, delivery.address) == (b"\x00\xff", b"a=b", ENVELOPE.address)
    assert delivery.headers[b"content-type"] == b"application/json"


def test_envelope_has_no_credentials() -> None:
    source = Source("stripe", SourceSettings(secrets=(STRIPE_SECRET,)), max_body=1000)
    headers = {"Stripe-Signature": "t=1,v1=00", "Authorization": "Bearer token", "Content-Type": "application/json"}
    envelope = make_envelope(source, Delivery.of(b"{}", headers), id="0123", received_at=0.0, verified_by="abc")
    assert envelope.headers == [(b"content-type", b"application/json")]


def test_message_of_an_empty_key_ring_is_accepted_only_from_a_trusted_queue() -> None:
    message = seal(ENVELOPE, KeyRing())
    assert unseal(message, "stripe", keys(), trusted=True) == ENVELOPE
    with pytest.raises(Rejected, match="not sealed"):
        unseal(message, "stripe", keys(), trusted=False)


def test_every_changed_byte_of_a_message_is_noticed() -> None:
    message = seal(ENVELOPE, keys())
    for position in range(len(message)):
        changed = bytearray(message)
        changed[position] ^= 1
        with pytest.raises((Rejected, Unavailable)):
            _unseal_or_reject(bytes(changed))


def test_truncated_message_is_rejected() -> None:
    message = seal(ENVELOPE, keys())
    for length in range(len(message)):
        with pytest.raises((Rejected, Unavailable)):
            _unseal_or_reject(message[:length])


def test_message_whose_key_is_missing_waits_for_the_key() -> None:
    with pytest.raises(Unavailable, match="the key 2026b is missing"):
        unseal(seal(ENVELOPE, keys("2026b")), "stripe", keys("2026a"), trusted=False)


def test_message_of_another_source_is_rejected() -> None:
    with pytest.raises(Rejected, match="does not match"):
        unseal(seal(ENVELOPE, keys()), "github", keys(), trusted=True)
    with pytest.raises(Rejected, match="another source"):
        unseal(seal(ENVELOPE, KeyRing()), "github", keys(), trusted=True)


@pytest.mark.parametrize("body", [b"", b"{}", PREFIX, PREFIX + b":", PREFIX + b":AAAA", PREFIX + b"\xff:AAAA"])
def test_message_that_no_receiver_published_is_rejected(body: bytes) -> None:
    with pytest.raises(Rejected):
        unseal(body, "stripe", keys(), trusted=True)


def _unseal_or_reject(message: bytes) -> None:
    unseal(message, "stripe", keys(), trusted=False)
