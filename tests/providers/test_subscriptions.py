"""Subscriptions: the receipts of consumers other than `main` that a claim has."""

import json
from typing import Any

import pytest

from oncehook import ConfigurationError
from oncehook.config.settings import SourceSettings
from oncehook.model.claim import Claim, ConsumerClaim
from oncehook.model.delivery import Delivery
from oncehook.model.states import State
from oncehook.providers.claims import ClaimReader
from oncehook.providers.definition import built_in
from oncehook.providers.subscriptions import Subscribers, Subscription, check_filter

FACTS = {"type": "invoice.paid", "object_id": "in_1", "source": "stripe", "tenant": ""}


def read(*subscriptions: Subscription, type_: str = "invoice.paid", **settings: object) -> Claim:
    reader = ClaimReader("stripe", built_in("stripe"), SourceSettings(**settings))  # type: ignore[arg-type]
    reader.subscribers.subscriptions = subscriptions
    body = json.dumps({"id": "evt_1", "type": type_, "livemode": False, "data": {"object": {"id": "in_1"}}}).encode()
    delivery = Delivery(body, [])
    (claim,) = reader.read(delivery, reader.parse(delivery))
    return claim


def test_claim_has_a_receipt_for_each_consumer_with_a_matching_pattern() -> None:
    claim = read(
        Subscription("analytics", "stripe"),
        Subscription("ledger", "stripe", patterns=["invoice.*"]),
        Subscription("support", "stripe", patterns=["customer.*", "charge"]),
    )
    assert claim.copies == (ConsumerClaim("analytics"), ConsumerClaim("ledger"))


def test_consumer_of_a_literal_type_with_special_characters_gets_it() -> None:
    type_ = "v2.core.account[requirements].updated"
    claim = read(Subscription("ledger", "stripe", patterns=[type_]), type_=type_)
    assert claim.copies == (ConsumerClaim("ledger"),)


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"types": ["charge.*"]}, "the type invoice.paid is not in consumers.ledger.types"),
        ({"where": {"livemode": True}}, "livemode is false, not true"),
    ],
)
def test_event_that_a_filter_leaves_out_is_ignored_with_the_reason(filters: dict[str, object], reason: str) -> None:
    claim = read(Subscription("ledger", "stripe", **filters))  # type: ignore[arg-type]
    assert claim.status is State.RECEIVED, "a consumer's filter must not change main's receipt"
    assert claim.copies == (ConsumerClaim("ledger", State.IGNORED, reason),)


def test_event_that_the_source_leaves_out_has_no_copies() -> None:
    claim = read(Subscription("ledger", "stripe"), types=("charge.*",))
    assert (claim.status, claim.copies) == (State.IGNORED, ())


def test_copies_have_the_serial_key_of_their_event() -> None:
    claim = read(Subscription("ledger", "stripe"), serial_by=("object_id",))
    assert (claim.serial_key, claim.copies) == ("in_1", (ConsumerClaim("ledger", serial_key="in_1"),))


def test_readers_of_tenants_share_the_subscriptions() -> None:
    reader = ClaimReader("stripe", built_in("stripe"), SourceSettings())
    of_tenant = reader.for_tenant("acme")
    reader.subscribers.subscriptions = (Subscription("ledger", "stripe"),)
    assert of_tenant.subscribers.copies("invoice.paid", {}, FACTS) == (ConsumerClaim("ledger"),)


def test_odd_payload_never_raises() -> None:
    subscribers = Subscribers()
    subscribers.subscriptions = (Subscription("ledger", "stripe", where={"a.b": {"gt": 1}}),)
    payloads: list[Any] = [None, [], "text", 5, {"a": []}, {"a": {"b": {}}}, [[[]]]]
    for payload in payloads:
        (copy,) = subscribers.copies("invoice.paid", payload, FACTS)
        assert copy.status is State.IGNORED


def test_filter_that_can_never_match_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"consumers\.ledger\.where"):
        Subscription("ledger", "stripe", where={"livemode": []})
    with pytest.raises(ConfigurationError, match=r'where\."@source" can never match: no @source is in \["stripe"\]'):
        check_filter("ledger", ["stripe"], None, {"@source": "github"})
    with pytest.raises(ConfigurationError, match=r'no @type is in consumers\.ledger\.types and "charge\.paid"'):
        check_filter("ledger", None, ["invoice.*"], {"@type": "charge.paid"})


def test_filter_may_have_an_alternative_for_each_source() -> None:
    where = {"any": [{"@source": "stripe", "livemode": True}, {"@source": "github", "action": "opened"}]}
    check_filter("ledger", ["stripe", "github"], None, where)
    check_filter("ledger", None, None, {"@source": "stripe"})
    (copy,) = read(Subscription("ledger", "stripe", where=where)).copies
    assert copy.last_error == 'no alternative holds: livemode is false, not true; @source is "stripe", not "github"'
