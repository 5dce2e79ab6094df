"""Claims of verified deliveries: their facts, their headers, batches, and bodies that cannot be used."""

import hashlib
import json
from typing import Any

import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.states import State
from tests.support.providers import NOW, make_source, read_claim, read_claims, sender

DEEP = b"[" * 100_000 + b"]" * 100_000


def test_claim_has_the_facts_and_the_exact_bytes_of_an_event() -> None:
    body = b'{ "id":"evt_1", "type":"invoice.paid", "created":1800000000, "data":{"object":{"id":"in_1"}} }\n'
    claim = read_claim(make_source(), body, traceparent="00-abc")
    assert (claim.source, claim.provider, claim.event_id, claim.type) == ("here", "stripe", "evt_1", "invoice.paid")
    assert (claim.object_id, claim.correlation_id, claim.status) == ("in_1", "00-abc", State.RECEIVED)
    assert claim.occurred_at is not None and claim.occurred_at.timestamp() == NOW
    assert claim.body == body and claim.fingerprint == hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (b'{"type":"t"}', "id"), (b'{"id":null,"type":"t"}', "id"), (b'{"id":"","type":"t"}', "id"),
        (b'{"id":" ","type":"t"}', "id"),
        (b'{"id":true,"type":"t"}', "id"), (b'{"id":1.5,"type":"t"}', "id"), (b'{"id":[],"type":"t"}', "id"),
        (b'{"id":"a"}', "type"),
        (b"null", "id"), (b"1", "id"), (b'"text"', "id"), (b"[]", "id"), (b"{}", "id"),
        (b'[{"id":"a","type":"t"}]', "id"), (DEEP, "id"),
    ],
)  # fmt: skip
def test_authentic_body_without_id_or_type_is_a_failed_receipt_under_its_hash(body: bytes, missing: str) -> None:
    claim = read_claim(make_source(), body)
    assert (
        claim.status is State.FAILED
        and claim.last_error == f"the event has no usable {missing} where the definition of stripe expects it"
    )
    assert claim.event_id == "sha256:" + hashlib.sha256(body).hexdigest()
    assert claim.body == body


def test_id_is_stored_unchanged_unless_an_index_cannot_hold_it() -> None:
    def id_of(value: Any) -> str:
        return read_claim(make_source(), json.dumps({"id": value, "type": "t"}).encode()).event_id

    kept = ["a", "A", "a ", " a", "é", "e\u0301", "a\n", "x" * 255]
    assert [id_of(value) for value in kept] == kept
    assert id_of(7) == "7" and id_of(10**300).startswith("sha256:")
    assert len({id_of(value) for value in ("x" * 256, "x" * 257, "a\x00", "\ud800", "ü" * 200)}) == 5


@pytest.mark.parametrize("body", [b"", b"{", b"not JSON", b"\xff", b'{"id":NaN}'])
def test_body_that_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        read_claims(make_source(), body)
    assert caught.value.reason == "malformed"


def test_repeated_id_header_is_malformed() -> None:
    source = make_source("github")
    twice = Delivery(b"{}", [(b"x-github-delivery", b"1"), (b"x-github-event", b"push"), (b"x-github-delivery", b"2")])
    with pytest.raises(Rejected, match="is repeated"):
        source.parse(twice)


def test_github_form_is_read_from_the_json_in_its_field() -> None:
    form = {"content_type": "application/x-www-form-urlencoded", "x_github_delivery": "d1", "x_github_event": "issues"}
    claim = read_claim(make_source("github"), b"payload=%7B%22action%22%3A%22opened%22%7D", **form)
    assert (claim.event_id, claim.type) == ("d1", "issues.opened")
    with pytest.raises(Rejected):
        read_claims(make_source("github"), b"payload=%7B", **form)
    assert read_claim(make_source("github"), b"other=1", **form).type == "issues"


def test_form_to_a_provider_that_sends_json_is_malformed() -> None:
    with pytest.raises(Rejected):
        read_claims(make_source("stripe"), b"id=evt_1&type=t", content_type="application/x-www-form-urlencoded")


def test_id_expression_of_the_source_replaces_the_definition() -> None:
    body = b'{"id":"attempt-7","type":"t","data":{"object":{"id":"in_1"}}}'
    assert read_claim(make_source(id="{type}|{data.object.id}"), body).event_id == "t|in_1"
    with pytest.raises(ConfigurationError, match=r"sources\.here: .* put \| between its parts"):
        make_source(id="{type}{data.object.id}")


def test_correlation_path_takes_precedence_over_traceparent() -> None:
    body = b'{"id":"a","type":"t","request":{"id":"req_1"}}'
    assert read_claim(make_source(correlation="request.id"), body, traceparent="00-x").correlation_id == "req_1"
    assert read_claim(make_source(correlation="missing"), body, traceparent="00-x").correlation_id == "00-x"
    assert read_claim(make_source(), body).correlation_id is None


def event(number: int) -> bytes:
    return b'{"sg_event_id":"e%d","event":"open","timestamp":1800000000}' % number


@pytest.mark.parametrize(
    "broken",
    [
        b'{"sg_event_id":"\xff","event":"open"}',
        DEEP,
        b"nonsense",
        b'{"sg_event_id":"x","event":NaN}',
        b"null",
        b"{}",
        b"[]",
        b'"a"',
        b"7",
    ],
)
def test_broken_element_is_a_failed_receipt_and_the_others_are_received(broken: bytes) -> None:
    body = b"[" + event(1) + b",\r\n" + broken + b" ," + event(2) + b"]\r\n"
    claims = read_claims(sender("sendgrid").source(), body)
    assert [claim.status for claim in claims] == [State.RECEIVED, State.FAILED, State.RECEIVED]
    assert [claim.body for claim in claims] == [event(1), broken, event(2)]
    assert [claims[0].event_id, claims[2].event_id] == ["e1", "e2"]
    assert claims[1].event_id == "sha256:" + hashlib.sha256(broken).hexdigest()


def test_identical_elements_are_two_claims_with_one_id() -> None:
    claims = read_claims(sender("sendgrid").source(), b"[" + event(1) + b"," + event(1) + b"]")
    assert [claim.event_id for claim in claims] == ["e1", "e1"]
    assert claims[0].fingerprint == claims[1].fingerprint


def test_empty_batch_has_no_claims() -> None:
    assert read_claims(sender("sendgrid").source(), b" [ ]\r\n") == []


@pytest.mark.parametrize(
    "body", [b"{}", b'{"sg_event_id":"e1","event":"open"}', b"1", b"null", b'"a"', b"{" + b'"a":' + DEEP + b"}"]
)
def test_valid_body_without_the_array_is_one_failed_receipt(body: bytes) -> None:
    claim = read_claim(sender("sendgrid").source(), body)
    assert claim.status is State.FAILED and claim.body == body


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[1", b"[" + event(1), b"not JSON", b"[" + event(1) + b",]", b"[nonsense,]"]
)
def test_truncated_batch_is_malformed(body: bytes) -> None:
    with pytest.raises(Rejected):
        read_claims(sender("sendgrid").source(), body)


def test_event_type_that_is_not_listed_is_ignored() -> None:
    body = b'{"id":"a","type":"invoice.paid"}'
    assert read_claim(make_source(types=["customer", "invoice.paid"]), body).status is State.RECEIVED
    assert read_claim(make_source(types=["customer"]), body).status is State.IGNORED
    assert read_claim(make_source(types=[]), body).status is State.IGNORED
    assert read_claim(make_source(types=["customer"]), body).last_error == (
        "the type invoice.paid is not in sources.here.types"
    )


def test_event_that_the_filter_leaves_out_is_ignored_with_the_reason() -> None:
    body = b'{"id":"a","type":"invoice.paid","data":{"object":{"id":"in_1","paid":false}}}'
    facts = {"@type": {"prefix": "invoice."}, "@object_id": "in_1", "@source": "here", "@tenant": {"exists": False}}
    assert read_claim(make_source(where=facts), body).status is State.RECEIVED
    ignored = read_claim(make_source(where={**facts, "data.object.paid": True}), body)
    assert (ignored.status, ignored.last_error) == (State.IGNORED, "data.object.paid is false, not true")


def test_tenant_is_a_fact_that_a_filter_can_use() -> None:
    reader = make_source(where={"@tenant": {"prefix": "eu-"}}, tenants=True, secrets=[]).reader
    delivery = Delivery.of(b'{"id":"a","type":"invoice.paid"}', {})
    reasons = {}
    for tenant in ("eu-1", "us-1"):
        of_tenant = reader.for_tenant(tenant)
        (claim,) = of_tenant.read(delivery, of_tenant.parse(delivery))
        reasons[tenant] = claim.last_error
    assert reasons == {"eu-1": None, "us-1": '@tenant is "us-1", not text that begins with "eu-"'}


def test_each_event_of_a_batch_is_filtered_by_its_own_payload() -> None:
    events = [{"sg_event_id": str(n), "event": "open", "category": n} for n in range(3)]
    source = sender("sendgrid").source(where={"category": {"gte": 1}})
    claims = read_claims(source, json.dumps(events).encode())
    assert [claim.status for claim in claims] == [State.IGNORED, State.RECEIVED, State.RECEIVED]


def test_event_without_a_usable_id_is_a_dead_letter_even_if_the_filter_leaves_it_out() -> None:
    assert read_claim(make_source(where={"paid": True}), b'{"type":"t"}').status is State.FAILED


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"where": {"@source": "github"}}, 'where."@source" can never match: no @source is "here" and "github"'),
        (
            {"where": {"@type": "charge.paid"}, "types": ["invoice.*"]},
            'sources.here.where."@type" can never match: no @type is in sources.here.types and "charge.paid"',
        ),
        ({"where": {"@type": ["charge.paid", 5]}, "types": ["invoice.*"]}, "can never match: no @type is in sources."),
        ({"where": {"data": {"gtee": 5}}}, "sources.here.where.data.gtee is not an operator: did you mean gte?"),
        (
            {"where": {"@tenant": "acme"}},
            'sources.here.where."@tenant" can never match: no @tenant is absent and "acme"',
        ),
        ({"where": []}, "sources.here.where is []: expected a table"),
    ],
)
def test_filter_of_a_source_that_cannot_be_used_is_a_configuration_error(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_source(**settings)
    assert sentence in str(caught.value)


def test_claim_stores_headers_without_credentials_and_signatures() -> None:
    dropped = [
        "authorization",
        "cookie",
        "x-api-key",
        "stripe-signature",
        "x-gitlab-token",
        "x-forwarded-for",
        "x-auth-token",
    ]
    headers = dict.fromkeys(dropped, "canary") | {"user-agent": "Stripe/1.0 ü", "x-other": ""}
    claim = read_claim(make_source(), b'{"id":"a","type":"t"}', **headers)
    assert json.loads(claim.headers) == {"user-agent": "Stripe/1.0 ü", "x-other": ""}


def test_token_header_of_a_custom_provider_is_not_stored() -> None:
    own = {
        "acme": {"event": {"id": "id", "type": "type"}, "signatures": [{"algorithm": "token", "header": "X-Acme-Key"}]}
    }
    assert read_claim(make_source("acme", own), b'{"id":"a","type":"t"}', x_acme_key="canary").headers == "{}"


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("provider", "body", "content_type", "expected"),
    [
        ("stripe", b'{"id": "evt_1"}', "application/json", {"id": "evt_1"}),
        ("github", b"payload=%7B%22ref%22%3A+%22main%22%7D", FORM, {"ref": "main"}),
        ("mandrill", b'{"_id": "1", "event": "send"}', "application/json", {"_id": "1", "event": "send"}),
        ("stripe", b"\xff", "application/json", None),
        ("stripe", DEEP, "application/json", None),
    ],
)
def test_stored_payload_is_parsed_as_the_delivery_was(
    provider: str, body: bytes, content_type: str, expected: Any
) -> None:
    reader = make_source(provider, public_url="https://shop.example/hooks").reader
    assert reader.parse_stored(body, {"content-type": content_type}) == expected
