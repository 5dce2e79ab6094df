"""Samples: realistic, signed deliveries of every provider."""

import json
from typing import Any

import pytest

from oncehook.config.configuration import read_source
from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.states import State
from oncehook.providers.definition import built_in, read_provider
from oncehook.providers.sample import compose, url_for
from oncehook.providers.source import Source
from tests.support.providers import NOW, SENDERS, TOPIC, Sender, sender

SECRET = "a secret of the test"


@pytest.mark.parametrize("one", SENDERS, ids=str)
def test_sample_has_no_placeholder_left(one: Sender) -> None:
    for type_ in one.types:
        delivery = one.compose(type_)
        assert b"$" not in delivery.body
        assert not any(b"$" in value for value in delivery.headers.values())
        assert delivery.headers[b"content-type"]
        if not one.sends_form:
            json.loads(delivery.body)


def test_example_of_the_type_takes_precedence_over_the_general_one() -> None:
    assert b'"invoice"' in compose(built_in("stripe"), "invoice.paid", SECRET, now=NOW).body
    assert b'"example"' in compose(built_in("stripe"), "customer.created", SECRET, now=NOW).body
    assert json.loads(compose(built_in("postmark"), "Bounce", "u:p", now=NOW).body)["ID"]


@pytest.mark.parametrize(
    ("type_", "event", "thing"),
    [
        ("push", "push", "ref"),
        ("issues.opened", "issues", "issue"),
        ("pull_request.closed", "pull_request", "pull_request"),
    ],
)
def test_github_type_is_split_into_event_and_action(type_: str, event: str, thing: str) -> None:
    sample = compose(built_in("github"), type_, SECRET, now=NOW)
    assert sample.headers["X-GitHub-Event"] == event
    assert thing in json.loads(sample.body)
    source = sender("github").source(SECRET)
    delivery = Delivery.of(sample.body, sample.headers)
    (claim,) = source.read(delivery, source.parse(delivery))
    assert claim.type == type_ and claim.occurred_at is not None


def test_sample_has_the_topic_of_the_source() -> None:
    topic = "arn:aws:sns:us-east-1:1:mine"
    settings = SourceSettings(topics=(topic,))
    body = compose(built_in("ses"), "Bounce", sender("ses").pair().signing, now=NOW, settings=settings).body
    assert json.loads(body)["TopicArn"] == topic != TOPIC


def test_type_that_breaks_a_body_with_its_signature_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        compose(built_in("mailgun"), '"}', SECRET, now=NOW)


OWN: dict[str, dict[str, Any]] = {
    "everything in the body": {"event": {"id": "a.id", "type": "a.type", "object": "a.b.id", "occurred_at": "at"}},
    "headers": {"event": {"id": "header:X-Id", "type": "header: X-Type", "object": "{x|y}"}},
    "composed": {"event": {"id": ["{a}|{b.c}", "x"], "type": "literal:thing"}},
    "composed of other facts": {"event": {"id": "{type}|{at}|{n}", "type": "type", "occurred_at": "at"}},
    "one field for two facts": {"event": {"id": "id", "type": "type", "object": "id"}},
    "a fact inside another": {"event": {"id": "a", "type": "type", "object": "a.b.c"}},
    "a batch": {"event": {"id": "id", "type": "type", "split": "*"}},
    "a batch inside": {"event": {"id": "id", "type": "type", "split": "data.events"}},
    "a time in the body": {"event": {"id": "id", "type": "type"}, "timestamp": {"body": "sent", "unit": "ms"}},
    "a signature in the body": {
        "event": {"id": "id", "type": "type"},
        "signatures": [{"algorithm": "hmac-sha256", "body": "auth.sig", "template": "{body:id}"}],
    },
    "a token": {"event": {"id": "id", "type": "type"}, "signatures": [{"algorithm": "token", "header": "X-Token"}]},
    "fields": {
        "event": {"id": "id", "type": "type"},
        "signatures": [
            {
                "algorithm": "hmac-sha512",
                "header": "S",
                "fields": ";",
                "field": "h1",
                "template": "{timestamp}:{body}",
                "encoding": "base64",
            }
        ],
        "timestamp": {"field": "ts"},
    },
}


@pytest.mark.parametrize("kind", OWN)
def test_definition_without_an_example_accepts_its_generated_sample(kind: str) -> None:
    table: dict[str, Any] = {"signatures": [{"algorithm": "hmac-sha256", "header": "X-Sig"}], **OWN[kind]}
    sample = compose(read_provider("acme", table, "x"), "thing", SECRET, now=NOW)
    source = Source("acme", read_source("acme", {"secrets": [SECRET]}), own_providers={"acme": table}, max_body=10_000)
    delivery = Delivery.of(sample.body, sample.headers)
    assert source.verifier is not None and source.verifier.verify(delivery, NOW) == 0
    (claim,) = source.read(delivery, source.parse(delivery))
    assert claim.status is State.RECEIVED and claim.type == "thing" and len(claim.event_id) >= 24


def test_sample_of_a_composed_type_has_its_parts() -> None:
    table = {
        "signatures": [{"algorithm": "hmac-sha256", "header": "X-Sig"}],
        "event": {"id": "id", "type": ["{header:X-Event}.{action}", "header:X-Event"]},
    }
    sample = compose(read_provider("acme", table, "x"), "issue.opened", SECRET, now=NOW)
    assert sample.headers["X-Event"] == "issue" and json.loads(sample.body)["action"] == "opened"


def test_address_of_a_source_is_below_webhooks() -> None:
    assert url_for("stripe") == "http://127.0.0.1:8000/webhooks/stripe"


def test_sample_without_a_secret_is_not_signed() -> None:
    sample = compose(built_in("stripe"), "invoice.paid", None, now=NOW)
    assert sample.headers == {"Content-Type": "application/json"} and b"invoice.paid" in sample.body
