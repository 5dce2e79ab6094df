"""The formats of messages that others put into a queue, and the delivery that each contains.

A delivery has the exact bytes of the body, so that a signature is verified over them as it is over HTTP.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from oncehook.intake.broker import Message
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.definition import Provider
from oncehook.providers.expressions import NEW

_HEADER_NAME = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
MAX_HEADERS = 200


def read_http(message: Message, provider: Provider) -> Delivery:
    """A message with the body of a delivery, and its headers as the attributes or headers of the message."""
    return make_delivery(message, message.body, message.headers)


class _Attribute(msgspec.Struct, frozen=True):
    value: Any = msgspec.field(default="", name="Value")


class _Notification(msgspec.Struct, frozen=True):
    message: str = msgspec.field(name="Message")
    topic: str = msgspec.field(name="TopicArn")
    attributes: dict[str, _Attribute] = msgspec.field(default_factory=dict, name="MessageAttributes")


def read_sns(message: Message, provider: Provider) -> Delivery:
    """A notification of SNS. Its message is the body of a delivery, and its attributes are the headers."""
    notification = _decode(message.body, _Notification, "a notification of SNS")
    attributes = {name: attribute.value for name, attribute in notification.attributes.items()}
    return make_delivery(message, notification.message.encode("utf-8", "surrogatepass"), header_pairs(attributes))


class _BusEvent(msgspec.Struct, frozen=True):
    source: str
    detail: msgspec.Raw


def read_eventbridge(message: Message, provider: Provider) -> Delivery:
    """An event of EventBridge. The provider's definition says which part of `detail` is the body of a delivery."""
    event = _decode(message.body, _BusEvent, "an event of EventBridge")
    bus = provider.eventbridge
    if bus.source is not None and not fnmatchcase(event.source, bus.source):
        raise Rejected("bad_signature", f"the source of the event is not {bus.source}")
    parts: dict[str, msgspec.Raw] = {}
    if bus.body is not None or bus.headers is not None:
        parts = _decode(bytes(event.detail), dict[str, msgspec.Raw], "an event of EventBridge with an object as detail")
    body = event.detail if bus.body is None else parts.get(bus.body)
    if body is None:
        raise Rejected("malformed", f"the detail of the event has no {bus.body}")
    headers = bytes(parts.get(bus.headers or "", b"{}"))
    metadata = _decode(headers, dict[str, Any], f"an event of EventBridge with an object as {bus.headers}")
    return make_delivery(message, bytes(body), header_pairs(metadata))


Format = Callable[[Message, Provider], Delivery]
FORMATS: dict[str, Format] = {"http": read_http, "sns": read_sns, "eventbridge": read_eventbridge}
"""The value of `intake_format` → the function that reads such a message. Each raises Rejected and nothing else."""


def make_delivery(message: Message, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Delivery:
    """A delivery with these headers, if their names are names of HTTP headers."""
    pairs = [pair for pair in headers if _HEADER_NAME.fullmatch(pair[0])]
    if len(pairs) > MAX_HEADERS:
        raise Rejected("malformed", f"the message has more than {MAX_HEADERS} headers")
    delivery = Delivery(body, pairs)
    delivery.headers[NEW] = message.id.encode()
    return delivery


def header_pairs(values: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """The texts of a mapping as headers. A header has only the characters of latin-1."""
    texts = ((name.lower(), value) for name, value in values.items() if isinstance(value, str))
    return [(name.encode("ascii", "replace"), value.encode("latin-1", "replace")) for name, value in texts]


def _decode(body: bytes, type_: Any, expected: str) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Rejected("malformed", f"the message is not {expected}") from None
