"""The broker of an `intake` setting."""

import pytest

from oncehook.intake.open_broker import open_broker
from oncehook.intake.sqs import SqsBroker
from oncehook.model.errors import ConfigurationError


def test_address_of_sqs_opens_sqs() -> None:
    broker = open_broker("sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/orders", "stripe")
    assert isinstance(broker, SqsBroker) and broker.name == "sqs:orders"


def test_addresses_of_nats_and_kafka_open_them() -> None:
    assert open_broker("nats://me:hidden@host/orders", "stripe").name == "nats:orders"
    assert open_broker("kafka+tls://host/orders?group=mine", "stripe").name == "kafka:orders"


@pytest.mark.parametrize("intake", ["nats:hidden", "nats://hidden", "kafka://me:hidden@", "redis://hidden/0/orders"])
def test_address_that_is_no_intake_is_an_error_without_the_address(intake: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^sources.stripe.intake") as caught:
        open_broker(intake, "stripe")
    assert "hidden" not in str(caught.value)


def test_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"sources.stripe.intake needs its client: .*oncehook\[kafka\]"):
        open_broker("kafka://host/orders", "stripe")


@pytest.mark.parametrize("address", ["orders", "https://sqs.eu-central-1.amazonaws.com/", "https:///1/orders", "//x/y"])
def test_address_that_is_no_queue_is_an_error(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sources.stripe.intake is not the URL of a queue"):
        open_broker(f"sqs:{address}", "stripe")
