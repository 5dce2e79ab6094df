"""The facts of an event."""

from oncehook.model.claim import Claim
from oncehook.model.event import EventFacts, facts_of
from oncehook.model.lease import Leased
from oncehook.model.receipt import Receipt
from tests.support.events import make_claim, make_leased


def test_claim_lease_and_receipt_share_the_facts() -> None:
    for record in (Claim, Leased, Receipt):
        assert set(EventFacts.__struct_fields__) <= set(record.__struct_fields__)


def test_facts_of_a_claim_build_a_lease_of_the_same_event() -> None:
    facts = facts_of(make_claim("evt_7", object_id="in_7"))
    leased = make_leased(**facts)
    assert facts_of(leased) == facts and leased.event_id == "evt_7"


def test_facts_do_not_contain_other_columns() -> None:
    assert set(facts_of(make_leased())) == set(EventFacts.__struct_fields__)
