"""The request to SQS: bodies that are no text, ids, and the limit of a message."""

import base64
import json

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.publisher import Message
from oncehook.brokers.sqs_publisher import MAX_BYTES, SqsPublisher, compose
from oncehook.model.errors import SendRefused

STANDARD = parse_broker("sqs:https://sqs.eu-west-1.amazonaws.com/1/orders")
FIFO = parse_broker("sqs:https://sqs.eu-west-1.amazonaws.com/1/orders.fifo")


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff", "\ufffe".encode(), b"a\x0bb"])
def test_body_that_is_no_text_for_sqs_is_sent_in_base64(body: bytes) -> None:
    request = compose(STANDARD, Message(key="k", body=body))
    assert request["MessageAttributes"]["Encoding"]["StringValue"] == "base64"
    assert request["MessageBody"], "SQS does not accept an empty body"
    assert base64.b64decode(request["MessageBody"] if body else "") == body


def test_body_that_is_text_is_sent_as_it_is_with_all_headers_in_one_attribute() -> None:
    headers = {f"x-{number}": "é" for number in range(20)}
    request = compose(STANDARD, Message(key="k", body='{\t"é\U0001f600"}'.encode(), headers=headers))
    attributes = {name: value["StringValue"] for name, value in request["MessageAttributes"].items()}
    assert request["MessageBody"] == '{\t"é\U0001f600"}' and attributes["Encoding"] == "text"
    assert json.loads(attributes["Headers"]) == headers and attributes["Idempotency-Key"] == "k"
    assert request["QueueUrl"] == "https://sqs.eu-west-1.amazonaws.com/1/orders"
    assert "MessageDeduplicationId" not in request and "MessageGroupId" not in request


def test_fifo_queue_deduplicates_by_the_key_and_orders_by_the_group() -> None:
    request = compose(FIFO, Message(key="stripe:evt_1", body=b"{}", group="in_1"))
    assert (request["MessageDeduplicationId"], request["MessageGroupId"]) == ("stripe:evt_1", "in_1")
    long = compose(FIFO, Message(key="k" * 129, body=b"{}", group="é \ud800"))
    assert long["MessageDeduplicationId"].startswith("sha256-") and long["MessageGroupId"].startswith("sha256-")
    assert compose(FIFO, Message(key="k", body=b"{}"))["MessageGroupId"] == "k"


def test_message_over_the_limit_is_refused() -> None:
    compose(STANDARD, Message(key="k", body=b"x" * (MAX_BYTES - 200)))
    with pytest.raises(SendRefused, match="SQS accepts 1,048,576"):
        compose(STANDARD, Message(key="k", body=b"x" * MAX_BYTES))
    with pytest.raises(SendRefused):  # in base64 it is larger
        compose(STANDARD, Message(key="k", body=b"\x00" * (MAX_BYTES - 1000)))


def test_region_comes_from_the_address() -> None:
    assert SqsPublisher(STANDARD)._client._region == "eu-west-1"
    assert SqsPublisher(parse_broker("sqs:http://localhost:4566/1/orders"))._client._region is None
