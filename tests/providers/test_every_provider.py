"""Rules that hold for every built-in provider. They run for a new definition without any change."""

import json
import traceback

import msgspec
import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError, Rejected
from oncehook.model.states import State
from oncehook.model.values import duration
from oncehook.providers.families.template import MAX_SIGNATURES
from tests.support.providers import NOW, SENDERS, Sender, at, changed, put

pytestmark = pytest.mark.system  # a matrix of all rules and all providers: it takes seconds

every = pytest.mark.parametrize("sender", SENDERS, ids=str)
stamped = pytest.mark.parametrize("sender", [one for one in SENDERS if one.stamps], ids=str)
stamped_by_template = pytest.mark.parametrize(
    "sender", [one for one in SENDERS if one.stamps and (one.in_body or not one.own_form)], ids=str
)
listing = pytest.mark.parametrize(
    "sender", [one for one in SENDERS if one.signature.fields or one.signature.separator], ids=str
)

BODY_IS_NOT_SIGNED = {"mailgun": "timestamp and token are signed; the token is the id, so that it counts once"}
"""Providers that send a token or a password are not listed: they sign nothing."""

NO_ID_ACROSS_ATTEMPTS = {
    "dropbox": "its notifications cannot be distinguished, so each delivery is an event",
    "plaid": "the token is the id, and a retry may have another token",
}


def reason(sender: Sender, delivery: Delivery, *secrets: str, now: float = NOW) -> str:
    """Why a source rejects a delivery when it verifies, parses and reads it."""
    source = sender.source(*secrets)
    assert source.verifier is not None
    with pytest.raises(Rejected) as caught:
        source.verifier.verify(delivery, now)
        source.read(delivery, source.parse(delivery))
    return caught.value.reason


def secret_index(sender: Sender, delivery: Delivery, *secrets: str, now: float = NOW) -> int:
    source = sender.source(*secrets)
    assert source.verifier is not None
    return source.verifier.verify(delivery, now)


def signature_header(sender: Sender) -> bytes:
    assert sender.header is not None
    return sender.header.lower().encode()


# -- valid deliveries -----------------------------------------------------------------------------------------------


@every
def test_each_example_verifies_and_has_id_type_object_and_time(sender: Sender) -> None:
    source = sender.source()
    for type_ in sender.types:
        delivery = sender.compose(type_)
        assert secret_index(sender, delivery) == 0
        claims = source.read(delivery, source.parse(delivery))
        assert claims[0].type == type_
        for claim in claims:
            assert claim.status is State.RECEIVED
            assert claim.event_id and (not claim.event_id.startswith("sha256:") or sender.provider.name == "plaid")
            assert claim.object_id
            if type_ == sender.types[0] and has_time(sender):
                assert claim.occurred_at is not None and abs(claim.occurred_at.timestamp() - NOW) < 1


def has_time(sender: Sender) -> bool:
    facts = sender.provider.event
    return facts.occurred_at is not None and sender.provider.name != "twilio"  # callbacks of messages have no time


@every
def test_signature_and_password_are_not_stored(sender: Sender) -> None:
    source, delivery = sender.source(), sender.compose()
    for claim in source.read(delivery, source.parse(delivery)):
        kept = msgspec.json.decode(claim.headers)
        assert sender.header is None or sender.header.lower() not in kept
        assert sender.pair().signing not in kept.values()


@every
def test_two_events_have_different_ids(sender: Sender) -> None:
    source = sender.source()
    first, second = (source.read(one, source.parse(one)) for one in (sender.compose(), sender.compose()))
    assert {claim.event_id for claim in first}.isdisjoint(claim.event_id for claim in second)


@every
def test_retry_of_an_event_has_the_same_id_and_fingerprint(sender: Sender) -> None:
    source = sender.source()
    first = sender.compose()
    again = sender.resend(first, now=NOW + 60)
    assert secret_index(sender, again, now=NOW + 60) == 0
    claims, repeated = (source.read(one, source.parse(one)) for one in (first, again))
    if sender.provider.name in NO_ID_ACROSS_ATTEMPTS:
        assert [claim.event_id for claim in claims] != [claim.event_id for claim in repeated]
        return
    assert [claim.event_id for claim in claims] == [claim.event_id for claim in repeated]
    if not sender.in_body:
        assert [claim.fingerprint for claim in claims] == [claim.fingerprint for claim in repeated]


@every
def test_any_of_several_secrets_verifies_during_a_rotation(sender: Sender) -> None:
    secrets = [sender.pair(number).verifying for number in (1, 2, 0)]
    assert secret_index(sender, sender.compose(), *secrets) == 2


# -- rejected deliveries --------------------------------------------------------------------------------------------


@every
def test_changed_body_is_rejected_if_the_signature_covers_the_body(sender: Sender) -> None:
    delivery = sender.compose()
    unsigned = sender.signature.family.sends_secret(sender.signature) or sender.provider.name in BODY_IS_NOT_SIGNED
    if unsigned and delivery.body.startswith(b"{"):
        assert secret_index(sender, changed(delivery, body=put(delivery.body, "added", 1))) == 0
    if unsigned:
        return
    for other in tampered(sender, delivery.body):
        assert other != delivery.body
        assert reason(sender, changed(delivery, body=other)) == "bad_signature", other


@pytest.mark.parametrize("sender", [one for one in SENDERS if one.signature.family.named_by != "algorithm"], ids=str)
def test_body_that_was_serialized_again_is_rejected(sender: Sender) -> None:
    """A receiver that parses the body and verifies what it would write itself accepts bodies that nobody signed."""
    body = sender.compose().body
    if "{body}" not in sender.signature.template or sender.sends_form or sender.signature.algorithm == "token":
        return
    value = msgspec.json.decode(body)
    forms = [msgspec.json.encode(value), msgspec.json.encode(value, order="sorted"), json.dumps(value).encode()]
    forms = list(dict.fromkeys([*forms, json.dumps(value, indent=2).encode()]))
    for written in forms:
        delivery = sender.resend(sender.compose(), now=NOW, body=written)
        assert secret_index(sender, delivery) == 0
        for other in forms:
            if other != written:
                assert reason(sender, changed(delivery, body=other)) == "bad_signature"


def tampered(sender: Sender, body: bytes) -> list[bytes]:
    """The body with a signed part of it changed."""
    if sender.signature.algorithm == "sns":
        return [put(body, name, "other") for name in ("Message", "MessageId", "Subject", "TopicArn")]
    if sender.signature.algorithm == "braintree":
        return [body.replace(b"bt_payload=", b"bt_payload=A"), body[:-8], body.replace(b"bt_payload", b"bt_other")]
    if sender.signature.each is not None:  # every element, not only the first
        fields = ("pspReference", "merchantReference", "eventCode", "success", "merchantAccountCode", "amount.value")
        paths = [f"{sender.signature.each}.{i}.NotificationRequestItem.{name}" for i in (0, 1) for name in fields]
        return [put(body, path, "other") for path in paths] + [put(body, sender.signature.each, [])]
    others = [body + b" ", b" " + body, body[:-1], b"", b"\xff" * 9]
    if body.startswith(b"{"):
        parsed = msgspec.json.decode(body)
        others += [put(body, "added", 1), msgspec.json.encode(dict(reversed(parsed.items())))]
    if sender.sends_form:
        others += [body + b"&added=1", b"added=1&" + body]
    return [other for other in others if other != body]


@every
def test_signature_truncated_at_any_length_is_rejected(sender: Sender) -> None:
    delivery = sender.compose()
    source = sender.source()
    assert source.verifier is not None
    for short in cut_short(sender, delivery):
        with pytest.raises(Rejected):
            source.verifier.verify(short, NOW)


def cut_short(sender: Sender, delivery: Delivery) -> list[Delivery]:
    if sender.signature.algorithm == "braintree":
        start = delivery.body.index(b"%7C") + 3
        end = delivery.body.index(b"&bt_payload")
        cuts = [delivery.body[:size] + delivery.body[end:] for size in range(start, end)]
        return [changed(delivery, body=body) for body in cuts]
    if sender.in_body:
        path = sender.signature.body or "Signature"
        if sender.signature.each is not None:
            path = f"{sender.signature.each}.0.{path}"
        value = at(msgspec.json.decode(delivery.body), path.split("."))
        cuts = [put(delivery.body, path, value[:size]) for size in range(len(value))]
        assert len(cuts) >= 20
        return [changed(delivery, body=body) for body in cuts]
    name = signature_header(sender)
    value = delivery.headers[name]
    short = [changed(delivery, {**delivery.headers, name: value[:size]}) for size in range(len(value))]
    short.append(changed(delivery, {key: kept for key, kept in delivery.headers.items() if key != name}))
    assert len(short) >= 20
    return short


@every
def test_delivery_signed_with_another_secret_is_rejected(sender: Sender) -> None:
    assert reason(sender, sender.compose(number=1), sender.pair(0).verifying) == "bad_signature"


@every
def test_repeated_signature_header_is_malformed_even_if_both_values_are_valid(sender: Sender) -> None:
    delivery = sender.compose()
    source = sender.source()
    assert source.verifier is not None
    names = set(source.reader.naming)
    for check in source.verifier.checks:
        names |= getattr(check, "guarded", set())
    if not sender.in_body:
        names.add(signature_header(sender))
    timestamp = source.provider.timestamp
    if timestamp is not None and timestamp.header:
        names.add(timestamp.header.lower().encode())
    present = names & set(delivery.headers)
    assert present or sender.in_body
    for name in present:
        twice = Delivery(delivery.body, [*delivery.headers.items(), (name, delivery.headers[name])])
        assert reason(sender, twice) == "malformed"


@listing
def test_thirty_two_signatures_are_tried_and_one_more_is_malformed(sender: Sender) -> None:
    delivery = sender.compose()
    name = signature_header(sender)
    value = delivery.headers[name]
    separator = (sender.signature.fields or sender.signature.separator or "").encode()
    *before, last = value.split(separator)
    wrong = last[:-8] + b"AAAAAAAA"

    def many(count: int) -> Delivery:
        signatures = [*before, *[wrong] * (count - 1), last]
        return changed(delivery, {**delivery.headers, name: separator.join(signatures)})

    assert secret_index(sender, many(2)) == 0
    assert secret_index(sender, many(MAX_SIGNATURES)) == 0
    assert reason(sender, many(MAX_SIGNATURES + 1)) == "malformed"
    assert reason(sender, many(5000)) == "malformed"


JUNK = (b"", b"not JSON", b'{"id":', b"\xff\xfe\x00", b'{"id": NaN}', b"[1", b'{"a":1}{"b":2}')


@every
def test_authentic_body_in_another_format_is_malformed(sender: Sender) -> None:
    delivery = sender.compose()
    for junk in JUNK:
        if sender.in_body or sender.sends_form or (sender.stamps and sender.provider.timestamp.body):  # type: ignore[union-attr]
            # the signature or the timestamp is in the body
            assert reason(sender, changed(delivery, body=junk)) == "bad_signature"
        elif sender.provider.name == "cloudevents":  # the data may be anything, so an attribute is malformed
            headers = {**delivery.headers, b"ce-id": b"%C3%28", b"authorization": delivery.headers[b"authorization"]}
            assert reason(sender, changed(delivery, headers, body=junk)) == "malformed"
        else:
            assert reason(sender, sender.resend(delivery, now=NOW, body=junk)) == "malformed"


# -- time -----------------------------------------------------------------------------------------------------------


@stamped
def test_timestamp_at_either_end_of_the_tolerance_is_accepted(sender: Sender) -> None:
    source = sender.source()
    assert source.verifier is not None and source.verifier.window is not None
    _, past, future = source.verifier.window
    assert sender.provider.timestamp is not None and sender.provider.horizon is not None
    allowed = duration(sender.provider.timestamp.tolerance)
    per_attempt = sender.provider.timestamp.stamps == "attempt"
    assert (past, future) == (allowed if per_attempt else sender.provider.horizon + allowed, allowed)
    assert allowed <= 600
    delivery = sender.compose()
    for now in (NOW, NOW + past, NOW - future):
        assert secret_index(sender, delivery, now=now) == 0
    for now in (NOW + past + 1, NOW - future - 1, NOW + 10 * 365 * 86400, NOW - 10 * 365 * 86400, 0.0):
        assert reason(sender, delivery, now=now) == "stale_timestamp"


@stamped_by_template
def test_malformed_timestamp_is_rejected_even_if_it_is_signed(sender: Sender) -> None:
    whole = str(int(NOW))
    odd = ["-1", "", "1_0", f"{whole[:-1]}_{whole[-1]}", f"+{whole}", f" {whole}", f"{whole} ", f"{whole}.0", "1e9999"]
    odd += ["nan", "inf", "0x6b49d200", "١٨٠٠٠٠٠٠٠٠", "１８０００００００", "9" * 20, "9" * 5000, "0" * 15 + whole]
    for stamp in odd:
        assert reason(sender, sender.stamped(stamp)) == "bad_signature", stamp


@stamped_by_template
def test_signed_timestamp_far_from_now_is_stale(sender: Sender) -> None:
    assert sender.provider.timestamp is not None
    iso = sender.provider.timestamp.unit == "iso"
    far = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"] if iso else ["0", "10", str(int(NOW) + 315_360_000)]
    for stamp in far:
        assert reason(sender, sender.stamped(stamp)) == "stale_timestamp", stamp


# -- start-up -------------------------------------------------------------------------------------------------------


@every
def test_blank_secret_is_a_configuration_error(sender: Sender) -> None:
    secret = sender.pair().verifying
    for blank in ("", " ", "\t\r\n", "\u00a0", "whsec_", " whsec_ ", "whsec_\n", "\x00\x00", "whpk_"):
        message = ""
        try:
            sender.source(secret, blank)
        except ConfigurationError as error:
            message = str(error)
        assert message.startswith("sources.here.secrets"), repr(blank)


@every
def test_source_without_a_secret_is_an_error_unless_its_key_is_fetched_or_offered_later(sender: Sender) -> None:
    if sender.signature.family.fetches_key:
        assert sender.source(secrets=[]).fetches_certificates
        return
    if sender.provider.starts_without_secret:  # until then every event is rejected
        waiting = sender.source(secrets=[])
        assert waiting.waits_for_secret and waiting.verifier is not None
        with pytest.raises(Rejected):
            waiting.verifier.verify(sender.compose(), NOW)
        return
    with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets is empty: set the secret"):
        sender.source(secrets=[])


@every
def test_error_about_an_unusable_secret_names_the_setting_and_never_the_value(sender: Sender) -> None:
    canary = "canary-7f3a9c\udcff"
    with pytest.raises(ConfigurationError, match=r"^sources\.here\.secrets\[1\] cannot be used") as caught:
        sender.source(sender.pair().verifying, canary)
    shown = "".join(traceback.format_exception(caught.value))
    assert "7f3a9c" not in shown and "udcff" not in shown


@every
def test_rejection_never_quotes_secret_signature_or_body(sender: Sender) -> None:
    delivery = sender.compose(number=1)
    source = sender.source()
    assert source.verifier is not None
    with pytest.raises(Rejected) as caught:
        source.verifier.verify(delivery, NOW)
    message = str(caught.value).encode()
    parts = [value for value in delivery.headers.values() if len(value) > 8]
    parts += [sender.pair().verifying.encode()[:16], delivery.body[:16]]
    assert not any(part in message for part in parts)
