"""Each usual cause of a wrong signature is recognized: body, secret, form, encoding and address."""

import base64
import json
import time

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.operations.doctor import diagnose
from oncehook.providers.definition import built_in
from oncehook.providers.sample import Sample, compose
from oncehook.providers.sign import sign
from tests.support.events import github_headers, stripe_headers
from tests.support.rejections import BODY, SIGN_THE_ADDRESS, causes, make_rejection, make_source

REWRITTEN = {
    "with blanks": lambda parsed: json.dumps(parsed).encode(),
    "indented": lambda parsed: json.dumps(parsed, indent=2).encode(),
    "sorted": lambda parsed: json.dumps(parsed, sort_keys=True).encode(),
}


@pytest.mark.parametrize("style", ["with blanks", "indented"])
def test_json_that_was_serialized_again_is_recognized(style: str) -> None:
    source = make_source()
    arrived = REWRITTEN[style](json.loads(BODY))
    assert causes(make_rejection(source, arrived, stripe_headers(BODY)), source) == ["rewritten JSON"]


def test_json_that_was_made_compact_is_recognized() -> None:
    source = make_source()
    sent = json.dumps(json.loads(BODY), indent=2, ensure_ascii=False).encode()
    assert causes(make_rejection(source, BODY, stripe_headers(sent)), source) == ["rewritten JSON"]


@pytest.mark.parametrize(
    ("sent", "arrived"), [(BODY, BODY + b"\n"), (BODY + b"\n", BODY), (b'{\r\n"id":1}', b'{\n"id":1}')]
)
def test_added_or_removed_line_break_is_recognized(sent: bytes, arrived: bytes) -> None:
    source = make_source()
    assert causes(make_rejection(source, arrived, stripe_headers(sent)), source) == ["newline"]


@pytest.mark.parametrize("configured", [" whsec_test", "whsec_test\n", '"whsec_test"'])
def test_blanks_and_quotes_around_the_secret_are_recognized(configured: str) -> None:
    source = make_source("github", secrets=[configured])
    headers = github_headers(BODY, "d-1", secret="whsec_test")
    assert causes(make_rejection(source, BODY, headers), source) == ["blank in the secret"]


def test_secret_of_another_source_is_recognized_and_the_source_is_named() -> None:
    test, live = make_source("github", secrets=["alpha"]), make_source("live", provider="github", secrets=["bravo"])
    rejection = make_rejection(test, BODY, github_headers(BODY, "d-1", secret="bravo"))
    (finding,) = diagnose(rejection, test, [test, live])
    assert finding.cause == "other source" and "live" in finding.shows and "bravo" not in str(finding)


def test_wrong_encoding_in_a_definition_is_recognized() -> None:
    source = make_source("github", secrets=["github-secret"])
    headers = github_headers(BODY, "d-1")
    raw = bytes.fromhex(headers["X-Hub-Signature-256"].removeprefix("sha256="))
    headers["X-Hub-Signature-256"] = "sha256=" + base64.b64encode(raw).decode()
    assert causes(make_rejection(source, BODY, headers), source) == ["encoding"]


def test_secret_in_another_form_is_recognized() -> None:
    source = make_source("standard-webhooks", secrets=["whsec_MDEyMzQ1Njc4OWFiY2RlZg=="])
    wrong = built_in("github")  # signs with the text of the secret
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(time.time()))}
    message = f"msg_1.{headers['webhook-timestamp']}.".encode() + BODY
    signed, _ = sign(wrong, message, "whsec_MDEyMzQ1Njc4OWFiY2RlZg==", now=time.time())
    raw = bytes.fromhex(signed["X-Hub-Signature-256"].removeprefix("sha256="))
    headers["webhook-signature"] = "v1," + base64.b64encode(raw).decode()
    assert causes(make_rejection(source, BODY, headers), source) == ["form of the secret"]


def test_two_causes_at_once_are_both_found() -> None:
    test, live = make_source("github", secrets=["alpha"]), make_source("live", provider="github", secrets=["bravo"])
    rejection = make_rejection(test, BODY + b"\n", github_headers(BODY, "d-1", secret="bravo"))
    assert sorted(causes(rejection, test, live)) == ["newline", "other source"]


HOOK = "https://a.example/hook"


ADDRESSES = {  # configured address, signed address, query of the request, expected sentence
    "the other scheme": (HOOK, "http://a.example/hook", "", "with http in place of https"),
    "https": ("http://a.example/hook", HOOK, "", "with https in place of http"),
    "a slash more": (HOOK, HOOK + "/", "", "with a slash at its end"),
    "a slash less": (HOOK + "/", HOOK, "", "without the slash at its end"),
    "a port less": ("https://a.example:8443/hook", HOOK, "", "without port 8443"),
    "a port more": (HOOK, "https://a.example:443/hook", "", "with port 443"),
    "a query that came on the way": (HOOK, HOOK, "via=proxy", "without the query"),
    "a query that was lost": (HOOK + "?token=t1", HOOK + "?token=t1", "", "with the query of `public_url`"),
    "two at once": (HOOK, "http://a.example/hook/", "", "with http in place of https and with a slash at its end"),
}


def signed_for(provider: str, address: str, secret: str = "a secret") -> Sample:
    definition = built_in(provider)
    type_ = definition.examples[0].type.replace("*", "paid")
    return compose(definition, type_, secret, now=time.time(), settings=SourceSettings(public_url=address))


@pytest.mark.parametrize("case", ADDRESSES)
def test_wrong_address_is_recognized_and_the_difference_described(case: str) -> None:
    configured, registered, query, expected = ADDRESSES[case]
    source = make_source("square", secrets=["a secret"], public_url=configured)
    sent = signed_for("square", registered)
    (finding,) = diagnose(make_rejection(source, sent.body, sent.headers, query=query), source)
    assert finding.cause == "address" and "`public_url`" in finding.remedy
    assert finding.shows == f"The signature is valid for the address {expected}."


def test_providers_that_sign_the_address_are_known() -> None:
    assert SIGN_THE_ADDRESS == ["hubspot", "mandrill", "square", "trello", "twilio"]


@pytest.mark.parametrize("provider", SIGN_THE_ADDRESS)
def test_address_is_varied_for_every_provider_that_signs_it(provider: str) -> None:
    source = make_source(provider, secrets=["a secret"], public_url=HOOK)
    sent = signed_for(provider, "http://a.example/hook")
    assert causes(make_rejection(source, sent.body, sent.headers), source) == ["address"]
    elsewhere = signed_for(provider, "https://b.example/hook")
    assert causes(make_rejection(source, elsewhere.body, elsewhere.headers), source) == ["unknown"]


def test_wrong_address_and_another_cause_are_both_found() -> None:
    source = make_source("square", secrets=["a secret"], public_url=HOOK)
    sent = signed_for("square", HOOK + "/")
    assert sorted(causes(make_rejection(source, sent.body + b"\n", sent.headers), source)) == ["address", "newline"]


def test_extra_secrets_are_tried_and_never_shown() -> None:
    source = make_source()
    rejection = make_rejection(source, BODY, stripe_headers(BODY, "whsec_before"))
    assert "--secret" in diagnose(rejection, source)[0].remedy
    (finding,) = diagnose(rejection, source, [], ["whsec_unknown", "whsec_before"])
    assert (finding.cause, "secret 2" in finding.shows) == ("other secret", True)
    assert "whsec_before" not in str(finding)
    with_newline = make_rejection(source, BODY + b"\n", stripe_headers(BODY, "whsec_before"))
    found = {one.cause for one in diagnose(with_newline, source, [], ["whsec_before"])}
    assert found == {"other secret", "newline"}
