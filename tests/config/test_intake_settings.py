"""Settings of an intake that cannot work together are errors at start."""

from typing import Any

import pytest

from oncehook import Inbox
from oncehook.model.errors import ConfigurationError
from tests.support.events import STRIPE_SECRET

QUEUE = "sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/orders"

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "format without a queue": ({"intake_format": "http"}, "need intake"),
    "trust without a queue": ({"intake_trust": "queue"}, "need intake"),
    "inline": ({"intake": QUEUE, "mode": "inline"}, "contradict each other"),
    "unsigned events of EventBridge": ({"intake": QUEUE, "intake_format": "eventbridge"}, "have no signature"),
    "topic without SNS": ({"intake": QUEUE, "intake_trust": "topic"}, 'needs intake_format = "sns" and topics'),
    "tenants of a trusted queue": (
        {"intake": QUEUE, "intake_format": "http", "intake_trust": "queue", "tenants": True},
        "could name any tenant",
    ),
    "another broker": ({"intake": "rabbit:orders"}, "expected sqs:, nats: or kafka:"),
    "unknown format": ({"intake": QUEUE, "intake_format": "xml"}, "expected one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_cannot_work_are_an_error(name: str) -> None:
    settings, expected = WRONG[name]
    with pytest.raises(ConfigurationError, match=expected):
        Inbox("sqlite:///unused.db").source("stripe", secrets=[STRIPE_SECRET], **settings)


def test_source_that_must_verify_needs_a_secret() -> None:
    with pytest.raises(ConfigurationError, match="secrets is empty"):
        Inbox("sqlite:///unused.db").source("stripe", intake=QUEUE, intake_format="http")


def test_source_of_a_trusted_queue_needs_no_secret_and_has_no_address() -> None:
    inbox = Inbox("sqlite:///unused.db")
    inbox.source("stripe", intake=QUEUE, intake_format="eventbridge", intake_trust="queue")
    source = inbox._runtime.sources["stripe"]
    assert source.is_queue_only and source.methods == [] and not source.waits_for_secret
