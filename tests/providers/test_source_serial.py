"""The serial key that a source derives from an event."""

from typing import Any

import pytest

from oncehook import ConfigurationError
from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.providers.source import Source
from tests.support.events import stripe_body

pytestmark = pytest.mark.anyio


def source(**settings: Any) -> Source:
    given = read_source("stripe", {"secrets": ["whsec_test"], **settings})
    return Source("stripe", given, max_body=2**20)


def key_of(made: Source, body: bytes) -> str | None:
    delivery = Delivery(body)
    (claim,) = made.read(delivery, made.parse(delivery))
    return claim.serial_key


@pytest.mark.parametrize(
    ("serial_by", "key"),
    [
        (None, None),
        ("object_id", "in_1"),
        ("data.object.id", "in_1"),
        ("{type}|{data.object.id}", "invoice.paid|in_1"),
        (["data.object.customer", "data.object.id"], "in_1"),
        ("literal:all", "all"),
        ("data.object.customer", None),
        ("data.object", None),
    ],
)
def test_serial_by_selects_the_serial_key_of_an_event(serial_by: Any, key: str | None) -> None:
    given = {} if serial_by is None else {"serial_by": serial_by}
    assert key_of(source(**given), stripe_body()) == key


def test_serial_key_that_is_too_long_is_replaced_by_its_hash() -> None:
    body = stripe_body(data={"object": {"id": "x" * 300}})
    key = key_of(source(serial_by="object_id"), body)
    assert key is not None and key.startswith("sha256:") and len(key) < 255


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"serial_by": "object_id", "mode": "inline"}, 'sources.stripe.serial_by needs mode = "queued"'),
        ({"serial_by": "data..id"}, "sources.stripe.serial_by: 'data..id' has an empty step"),
        ({"serial_by": "object_id", "serial_failed": "wait"}, "expected one of block, skip"),
        ({"serial_by": 7}, "sources.stripe.serial_by is 7"),
    ],
)
def test_invalid_serial_by_is_a_configuration_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", "\\(")):
        source(**settings)


def test_serial_by_object_id_needs_a_provider_with_object_ids() -> None:
    signature = {"algorithm": "hmac-sha256", "header": "X-Sig"}
    own = {"acme": {"title": "Acme", "signatures": [signature], "event": {"id": "id", "type": "type"}}}
    given = read_source("acme", {"secrets": ["a-long-random-text"], "serial_by": "object_id"})
    with pytest.raises(ConfigurationError, match="the definition of acme has no `object`"):
        Source("acme", given, own_providers=own, max_body=2**20)
