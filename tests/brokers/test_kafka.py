"""Kafka: the settings of the client, and a cluster that does not take a message."""

import pytest
from confluent_kafka import KafkaError

from oncehook.brokers.address import parse_broker
from oncehook.brokers.kafka import KafkaPublisher, client_settings
from oncehook.brokers.publisher import NotStored
from oncehook.model.errors import OncehookError, SendFailed, SendRefused

pytestmark = pytest.mark.system


def test_credentials_choose_the_security_protocol() -> None:
    def chosen(text: str) -> tuple[object, ...]:
        settings = client_settings(parse_broker(text))
        return settings["security.protocol"], settings.get("sasl.mechanism"), settings.get("sasl.username")

    assert chosen("kafka://a,b/orders") == ("PLAINTEXT", None, None)
    assert chosen("kafka+tls://a/orders") == ("SSL", None, None)
    assert chosen("kafka://me:hidden@a/orders") == ("SASL_PLAINTEXT", "PLAIN", "me")
    assert chosen("kafka+tls://me:hidden@a/orders?sasl=SCRAM-SHA-512") == ("SASL_SSL", "SCRAM-SHA-512", "me")
    assert client_settings(parse_broker("kafka://a:1,b:2/orders"))["bootstrap.servers"] == "a:1,b:2"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, SendRefused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotStored),
        (KafkaError._UNKNOWN_TOPIC, NotStored),
        (KafkaError._MSG_TIMED_OUT, SendFailed),
        (KafkaError.NOT_ENOUGH_REPLICAS, SendFailed),
        (KafkaError.REQUEST_TIMED_OUT, SendFailed),
        (KafkaError._PURGE_QUEUE, SendFailed),
    ],
)
def test_delivery_report_with_an_error_is_not_an_acknowledgement(code: int, expected: type[OncehookError]) -> None:
    publisher = KafkaPublisher(parse_broker("kafka://me:hidden@host/orders"))
    error = publisher._exception(KafkaError(code))
    assert type(error) is expected and "hidden" not in str(error) and "kafka://host:9092" in str(error)
