"""Addresses of brokers: their parts, their origin, and errors that do not repeat them."""

import pytest

from oncehook.brokers.address import BrokerAddress, check_client, is_broker, parse_broker
from oncehook.model.errors import ConfigurationError

PARTS = {
    "nats://host/orders.created": ("nats", (("host", 4222),), ("orders.created",)),
    "nats+tls://a:1,b:2/orders": ("nats", (("a", 1), ("b", 2)), ("orders",)),
    "kafka://a,b:9/orders": ("kafka", (("a", 9092), ("b", 9)), ("orders",)),
    "redis://[::1]:7/3/orders:new": ("redis", (("::1", 7),), ("3", "orders:new")),
    "rabbitmq://Host./orders": ("rabbitmq", (("host", 5672),), ("orders",)),
    "rabbitmq+tls://host/%2F/a%20b": ("rabbitmq", (("host", 5671),), ("/", "a b")),
    "sqs:https://sqs.eu-west-1.amazonaws.com/1/orders": (
        "sqs",
        (("sqs.eu-west-1.amazonaws.com", 443),),
        ("1", "orders"),
    ),
}


@pytest.mark.parametrize(("text", "parts"), PARTS.items())
def test_address_is_split_into_kind_hosts_and_names(text: str, parts: tuple[object, ...]) -> None:
    address = parse_broker(text)
    assert (address.kind, address.hosts, address.path) == parts
    assert address.secure == (("+tls" in text) or text.startswith("sqs:https"))


def test_origin_has_scheme_hosts_and_ports_only() -> None:
    origins = {
        "nats://me:hidden@host/orders": "nats://host:4222",
        "kafka+tls://me:hidden@a,[::1]:2/orders": "kafka+tls://a:9092,[::1]:2",
        "sqs:https://sqs.eu-west-1.amazonaws.com/1/orders": "sqs:https://sqs.eu-west-1.amazonaws.com",
        "sqs:http://localhost:4566/1/orders": "sqs:http://localhost:4566",
    }
    assert {text: parse_broker(text).origin for text in origins} == origins
    assert parse_broker("sqs:http://localhost:4566/1/orders").queue_url == "http://localhost:4566/1/orders"


def test_credentials_are_decoded_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    address = parse_broker("rabbitmq://me:hid%40den@host/orders")
    assert (address.user, address.password, address.has_credentials) == ("me", "hid@den", True)
    assert "hid" not in f"{address} {address!r}" and "me" not in f"{address!r}".partition("path")[2]
    monkeypatch.setenv("BROKER_PASSWORD", "from-the-environment")
    reference = parse_broker("nats://me:env:BROKER_PASSWORD@host/orders")
    assert reference.resolve_password("effect_targets").password == "from-the-environment"
    monkeypatch.delenv("BROKER_PASSWORD")
    with pytest.raises(ConfigurationError, match="effect_targets is empty: set BROKER_PASSWORD"):
        reference.resolve_password("effect_targets")


def test_credentials_and_options_come_from_the_configured_address() -> None:
    configured = parse_broker("kafka://me:hidden@host?sasl=SCRAM-SHA-512", needs_name=False)
    address = parse_broker("kafka://host/orders").with_credentials_of(configured)
    assert (address.name, address.user, address.password) == ("orders", "me", "hidden")
    assert address.options == {"sasl": "SCRAM-SHA-512"}


def test_virtual_host_or_database_belongs_to_the_connection() -> None:
    addresses = ["redis://host/3/orders", "rabbitmq://host/orders", "rabbitmq://host/shop/orders", "nats://host/orders"]
    assert [parse_broker(address).vhost for address in addresses] == ["3", "/", "shop", None]


@pytest.mark.parametrize(
    "text",
    [
        "nats://host",
        "nats://host/a/b",
        "nats://host:0/a",
        "nats://host:65536/a",
        "nats://ho st/a",
        "nats://host/a?hidden=1",
        "nats://host/a?sync=hidden",
        "nats:hidden",
        "kafka:///hidden",
        "redis://host/hidden",
        "redis://host/x/hidden",
        "redis://a,b/0/hidden",
        "redis://host/0/hidden?maxlen=many",
        "rabbitmq://host/a/b/hidden",
        "sqs:https://me:hidden@host/1/queue",
        "sqs:https://host",
        "sqs:ftp://hidden/1/queue",
        "https://hidden/",
    ],
)
def test_invalid_address_is_rejected_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(expected|'hidden' is not an option)") as caught:
        parse_broker(text)
    assert "?hidden" in text or "hidden" not in str(caught.value)


def test_only_known_schemes_are_brokers() -> None:
    assert all(is_broker(text) for text in PARTS)
    others = ["https://a/b", "redis:orders", "orders", "nats:orders", "sqs:orders", "xnats://a/b", "amqp://a/b"]
    assert not any(is_broker(text) for text in others)


def test_missing_client_library_names_its_extra() -> None:
    with pytest.raises(ConfigurationError, match=r"queue needs its client: pip install 'oncehook\[nats\]'"):
        check_client("no_such_library", "nats", "queue")
    check_client("json", "nats", "queue")


def test_addresses_are_equal_by_their_parts() -> None:
    assert parse_broker("nats://host/a") == BrokerAddress("nats", (("host", 4222),), ("a",))
