"""The warning that NATS acknowledges messages before they are on disk."""

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.intake.durability import durability_risk


@pytest.mark.parametrize(
    ("intake", "is_risky"),
    [
        ("nats://host/orders", True),
        ("nats+tls://host/orders", True),
        ("nats://host/orders?sync=always", False),
        ("kafka://host/orders", False),
        ("sqs:https://sqs.eu-central-1.amazonaws.com/1/orders", False),
        ("nats:orders", False),
        ("nats://host", False),
        (None, False),
    ],
)
def test_nats_is_a_risk_unless_the_address_says_that_the_server_syncs(intake: str | None, is_risky: bool) -> None:
    risk = durability_risk(SourceSettings(intake=intake))
    assert (risk is not None and "sync_interval: always" in risk) == is_risky


def test_queue_that_others_fill_is_no_risk_of_the_receiver() -> None:
    assert durability_risk(SourceSettings(intake="nats://host/orders", intake_format="http")) is None
