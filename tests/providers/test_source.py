"""A source made ready, and what it reads out of an authentic delivery: claims, whatever the body holds."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.config.configuration import read_source
from oncehook.config.secret import resolve
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.patterns import compile_pattern
from oncehook.model.states import State
from oncehook.providers.source import Source
from tests.support.providers import NOW, sender

DEEP = b"[" * 100_000 + b"]" * 100_000


def make(provider: str = "stripe", own: dict[str, Any] | None = None, **settings: Any) -> Source:
    values = {"provider": provider, "secrets": ["secret"], **settings}
    return Source("here", read_source("here", values), own_providers=own or {}, max_body=1000)


def read(source: Source, body: bytes, **headers: str) -> list[Claim]:
    delivery = Delivery.of(body, {name.replace("_", "-"): value for name, value in headers.items()})
    return source.read(delivery, source.parse(delivery))


def only(source: Source, body: bytes, **headers: str) -> Claim:
    (claim,) = read(source, body, **headers)
    return claim


# -- events ---------------------------------------------------------------------------------------------------------


def test_an_event_becomes_a_claim_with_its_exact_bytes() -> None:
    body = b'{ "id":"evt_1", "type":"invoice.paid", "created":1800000000, "data":{"object":{"id":"in_1"}} }\n'
    claim = only(make(), body, traceparent="00-abc")
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
def test_an_authentic_body_without_a_usable_id_or_type_is_a_failed_receipt_under_its_hash(
    body: bytes, missing: str
) -> None:
    claim = only(make(), body)
    assert (
        claim.status is State.FAILED
        and claim.last_error == f"the event has no usable {missing} where the definition of stripe expects it"
    )
    assert claim.event_id == "sha256:" + hashlib.sha256(body).hexdigest()
    assert claim.body == body


def test_ids_are_kept_as_they_are_and_only_by_hash_when_an_index_could_not_hold_them() -> None:
    def id_of(value: Any) -> str:
        return only(make(), json.dumps({"id": value, "type": "t"}).encode()).event_id

    kept = ["a", "A", "a ", " a", "é", "e\u0301", "a\n", "x" * 255]
    assert [id_of(value) for value in kept] == kept
    assert id_of(7) == "7" and id_of(10**300).startswith("sha256:")
    assert len({id_of(value) for value in ("x" * 256, "x" * 257, "a\x00", "\ud800", "ü" * 200)}) == 5


@pytest.mark.parametrize("body", [b"", b"{", b"not JSON", b"\xff", b'{"id":NaN}'])
def test_bytes_that_are_not_what_they_claim_to_be_are_malformed(body: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        read(make(), body)
    assert caught.value.reason == "malformed"


def test_an_id_header_that_came_twice_is_malformed() -> None:
    source = make("github")
    twice = Delivery(b"{}", [(b"x-github-delivery", b"1"), (b"x-github-event", b"push"), (b"x-github-delivery", b"2")])
    with pytest.raises(Rejected, match="is repeated"):
        source.parse(twice)


def test_a_githubs_form_is_read_by_the_json_in_it() -> None:
    form = {"content_type": "application/x-www-form-urlencoded", "x_github_delivery": "d1", "x_github_event": "issues"}
    claim = only(make("github"), b"payload=%7B%22action%22%3A%22opened%22%7D", **form)
    assert (claim.event_id, claim.type) == ("d1", "issues.opened")
    with pytest.raises(Rejected):
        read(make("github"), b"payload=%7B", **form)
    assert only(make("github"), b"other=1", **form).type == "issues"


def test_a_form_sent_to_a_provider_that_sends_none_is_not_read_as_one() -> None:
    with pytest.raises(Rejected):
        read(make("stripe"), b"id=evt_1&type=t", content_type="application/x-www-form-urlencoded")


def test_an_own_id_expression_replaces_the_providers() -> None:
    body = b'{"id":"attempt-7","type":"t","data":{"object":{"id":"in_1"}}}'
    assert only(make(id="{type}|{data.object.id}"), body).event_id == "t|in_1"
    with pytest.raises(ConfigurationError, match=r"sources\.here: .* put \| between its parts"):
        make(id="{type}{data.object.id}")


def test_a_correlation_path_comes_before_traceparent() -> None:
    body = b'{"id":"a","type":"t","request":{"id":"req_1"}}'
    assert only(make(correlation="request.id"), body, traceparent="00-x").correlation_id == "req_1"
    assert only(make(correlation="missing"), body, traceparent="00-x").correlation_id == "00-x"
    assert only(make(), body).correlation_id is None


# -- batches --------------------------------------------------------------------------------------------------------


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
def test_a_broken_element_is_its_own_failed_receipt_and_loses_none_of_the_others(broken: bytes) -> None:
    body = b"[" + event(1) + b",\r\n" + broken + b" ," + event(2) + b"]\r\n"
    claims = read(sender("sendgrid").source(), body)
    assert [claim.status for claim in claims] == [State.RECEIVED, State.FAILED, State.RECEIVED]
    assert [claim.body for claim in claims] == [event(1), broken, event(2)]
    assert [claims[0].event_id, claims[2].event_id] == ["e1", "e2"]
    assert claims[1].event_id == "sha256:" + hashlib.sha256(broken).hexdigest()


def test_two_identical_elements_are_two_claims_of_one_id() -> None:
    claims = read(sender("sendgrid").source(), b"[" + event(1) + b"," + event(1) + b"]")
    assert [claim.event_id for claim in claims] == ["e1", "e1"]
    assert claims[0].fingerprint == claims[1].fingerprint


def test_an_empty_batch_has_no_claims() -> None:
    assert read(sender("sendgrid").source(), b" [ ]\r\n") == []


@pytest.mark.parametrize(
    "body", [b"{}", b'{"sg_event_id":"e1","event":"open"}', b"1", b"null", b'"a"', b"{" + b'"a":' + DEEP + b"}"]
)
def test_a_well_formed_body_that_is_no_batch_is_one_failed_receipt(body: bytes) -> None:
    claim = only(sender("sendgrid").source(), body)
    assert claim.status is State.FAILED and claim.body == body


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[1", b"[" + event(1), b"not JSON", b"[" + event(1) + b",]", b"[nonsense,]"]
)
def test_a_batch_that_was_cut_off_is_malformed(body: bytes) -> None:
    with pytest.raises(Rejected):
        read(sender("sendgrid").source(), body)


# -- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("push", ["push", "push.forced"], ["pushed", "pus", "xpush", "PUSH"]),
        ("invoice.*", ["invoice.paid", "invoice.a.b"], ["invoice", "invoices.paid"]),
        ("*.paid", ["invoice.paid", "invoice.paid.late"], ["paid", "invoice.unpaid"]),
        ("orders/*", ["orders/create"], ["orders"]),
        ("a[bc]?", ["a[bc]x", "a[bc]y.z"], ["abx", "a[bc]"]),
        ("v2.account[requirements].updated", ["v2.account[requirements].updated"], ["v2.accountr.updated"]),
        ("a]b[!c", ["a]b[!c"], ["a]bx"]),
        ("a\\*", ["a\\b"], ["a*"]),
        ("*", ["", "anything\nat all"], []),
    ],
)
def test_a_pattern_matches_as_the_shell_does_and_as_a_dotted_prefix(
    pattern: str, taken: list[str], left: list[str]
) -> None:
    assert all(compile_pattern(pattern).fullmatch(type_) for type_ in taken)
    assert not any(compile_pattern(pattern).fullmatch(type_) for type_ in left)


def test_a_type_that_the_allow_list_leaves_out_is_ignored_and_an_empty_list_leaves_out_all() -> None:
    body = b'{"id":"a","type":"invoice.paid"}'
    assert only(make(types=["customer", "invoice.paid"]), body).status is State.RECEIVED
    assert only(make(types=["customer"]), body).status is State.IGNORED
    assert only(make(types=[]), body).status is State.IGNORED


# -- headers --------------------------------------------------------------------------------------------------------


def test_credentials_and_signatures_are_not_kept_and_other_headers_are() -> None:
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
    claim = only(make(), b'{"id":"a","type":"t"}', **headers)
    assert json.loads(claim.headers) == {"user-agent": "Stripe/1.0 ü", "x-other": ""}


def test_a_providers_own_token_header_is_dropped_too() -> None:
    own = {
        "acme": {"event": {"id": "id", "type": "type"}, "signatures": [{"algorithm": "token", "header": "X-Acme-Key"}]}
    }
    assert only(make("acme", own), b'{"id":"a","type":"t"}', x_acme_key="canary").headers == "{}"


# -- start-up -------------------------------------------------------------------------------------------------------


def test_a_source_without_what_its_provider_needs_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.here\.topics is missing"):
        make("ses", secrets=[])


def test_an_unsigned_source_must_be_written_out_as_such() -> None:
    assert make(secrets=[], verify="none").verifier is None
    with pytest.raises(ConfigurationError, match='set verify = "none"'):
        make(secrets=[])


def test_the_sources_limit_comes_before_the_providers_and_that_before_the_global_one() -> None:
    assert make("stripe").max_body == 1000
    assert make("github").max_body == 25 * 2**20
    assert make("github", max_body="5kB").max_body == 5000


def test_a_secret_may_stand_in_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", "from the environment")
    (tmp_path / "secret").write_text("from a file\n")
    assert resolve("env:OF_A_TEST", "x") == "from the environment"
    assert resolve(f"file:{tmp_path / 'secret'}", "x") == "from a file"
    assert resolve("whsec_x", "x") == "whsec_x"


@pytest.mark.parametrize("word", ["None", "null", "NULL", '""', "''", " None ", "\u200b", "\ufeff", "undefined"])
def test_a_placeholder_is_no_secret(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST", word)
    for reference in (word, "env:OF_A_TEST"):
        with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets\[0\] is a placeholder"):
            make(secrets=[reference]).load_secrets()


@pytest.mark.parametrize(
    "reference",
    [
        "",
        " ",
        "env:NOT_SET_ANYWHERE",
        "env:BLANK",
        "env:",
        "file:/not/there",
        "file:{}/blank",
        "file:{}/bytes",
        "file:{}",
        "file:\x00",
    ],
)
def test_a_secret_that_is_not_there_is_an_error_that_names_its_place(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLANK", " \n")
    (tmp_path / "blank").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"canary\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets\[0\]") as caught:
        make(secrets=[reference.format(tmp_path)]).load_secrets()
    assert "canary" not in str(caught.value)


def test_a_text_in_place_of_a_list_of_secrets_is_refused() -> None:
    """Each of its characters would be a secret."""
    with pytest.raises(ConfigurationError, match=r"sources\.github\.secrets.*expected a list of strings"):
        Inbox("sqlite:///x.db").source("github", secrets="hello")
