"""Definitions of providers: the built-in ones are complete, and one that cannot work is an error."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.providers import families
from oncehook.providers.definition import ALGORITHMS, built_in, built_in_names, find, read_provider

PROMISED = """
stripe github gitlab bitbucket shopify slack sendgrid ses postmark mailgun mandrill mailjet sparkpost brevo resend
standard-webhooks svix clerk twilio discord linear paddle lemonsqueezy square paypal adyen braintree plaid zoom
hubspot intercom zendesk typeform calendly twitch meta dropbox microsoft-graph docusign asana trello notion jira
sentry pagerduty vercel razorpay coinbase-commerce woocommerce openai cloudevents sesmetric
"""
FURTHER = "okta xero x gocardless customer-io segment workos circleci telegram line clickup"

FAMILIES = {name for name in families.built_in_names() if families.find(name).named_by == "algorithm"}
ALLOWED = ", ".join(sorted({*ALGORITHMS, *FAMILIES}))
STAMPED = "{timestamp}.{body}"
ZOOM = {"kind": "zoom", "when": {"a": "b"}, "echo": "c"}


def definition(**changes: Any) -> dict[str, Any]:
    base = {"event": {"id": "id", "type": "type"}, "signatures": [{"algorithm": "hmac-sha256", "header": "X-Sig"}]}
    return {**base, **changes}


def signature(**changes: Any) -> dict[str, Any]:
    return definition(signatures=[{"algorithm": "hmac-sha256", "header": "X-Sig", **changes}])


@pytest.mark.parametrize("name", built_in_names())
def test_built_in_provider_describes_its_secret_and_has_an_example(name: str) -> None:
    provider = built_in(name)
    assert provider.name == name and provider.title and provider.secret and provider.checked and provider.examples
    assert provider.docs.startswith("https://") or provider.support == "unconfirmed"
    assert provider.horizon and provider.retries.schedule


def test_every_promised_provider_is_built_in() -> None:
    promised, further = PROMISED.split(), FURTHER.split()
    assert len(promised) == 52 and set(built_in_names()) >= {*promised, *further}


def test_ten_schemes_beyond_the_promised_ones_are_confirmed() -> None:
    assert len([name for name in FURTHER.split() if built_in(name).support == "confirmed"]) >= 10


@pytest.mark.parametrize("name", built_in_names())
def test_unconfirmed_definition_says_in_its_notes_what_is_not_confirmed(name: str) -> None:
    provider = built_in(name)
    if provider.support == "unconfirmed":
        assert any("not read in" in note or "not from" in note for note in provider.notes)


def test_only_the_definitions_in_use_are_read_at_start() -> None:
    """Runs in a separate process, because other tests read definitions in this one."""
    script = (
        "from oncehook import Inbox; from oncehook.providers import definition as providers\n"
        "Inbox('sqlite:///never-opened.db').source('stripe', secrets=['whsec_x'])\n"
        "print(providers.built_in.cache_info().currsize, 'cryptography' in __import__('sys').modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["1", "False"]


def test_definition_in_the_configuration_takes_precedence_over_a_built_in_one() -> None:
    assert find("stripe", {"stripe": definition(title="Mine")}).title == "Mine"
    assert find("stripe", {"acme": definition()}).title == "Stripe"


def test_error_about_an_unknown_provider_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean stripe"):
        find("strip", {})
    with pytest.raises(ConfigurationError, match=r"\[providers\.no-such-provider\] defines one"):
        find("no-such-provider", {})


def test_definition_cannot_give_itself_another_name() -> None:
    assert read_provider("acme", definition(name="stripe"), "providers.acme").name == "acme"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "signatures"),
        (definition(signatures=[]), "`signatures` is empty"),
        (definition(color="red"), "unknown field `color`"),
        (definition(event={"id": "a..b", "type": "t"}), "has an empty step"),
        (definition(event={"id": "{a}{b}", "type": "t"}), "put | between its parts"),
        (definition(event={"id": "id", "type": []}), "an expression is empty"),
        (definition(retries={"horizon": "soon"}), "expected a duration"),
        (definition(max_body="big"), "expected a size"),
        (definition(options=["color"]), "`options` names color"),
        (definition(handshakes=[{"kind": "echo", "when": {}}]), "every delivery would be a handshake"),
        (definition(handshakes=[{"kind": "echo", "when": {"a": "b"}}]), "`echo` of a handshake is empty"),
        (definition(handshakes=[{**ZOOM, "signed": False}]), "must be signed, or anyone could use it"),
        (definition(handshakes=[{**ZOOM, "method": "GET"}]), "must be signed, or anyone could use it"),
        (definition(handshakes=[{**ZOOM, "kind": "sns", "signed": False}]), "must be signed, or anyone could use it"),
        (definition(handshakes=[{**ZOOM, "kind": "braintree"}]), 'needs `algorithm = "braintree"`'),
        (definition(handshakes=[{**ZOOM, "kind": "ecko"}]), "handshakes[0].kind is 'ecko': did you mean echo?"),
        (definition(handshakes=[{**ZOOM, "kind": "basic"}]), "handshakes[0].kind is 'basic'"),
        (signature(tokens="basic"), "signatures[0].tokens is 'basic': the allowed values are microsoft"),
        (definition(signatures=[{"algorithm": "basic"}], handshakes=[ZOOM]), "needs an HMAC key"),
        (signature(template="{url}{body}"), 'add "public_url" to `options`'),
        (signature(each="items"), "`body` must be the path of the signature in an element"),
        (definition(answer={"status": 500}), "<= 299"),
        (signature(header=None), "set exactly one of them"),
        (signature(body="sig"), "set exactly one of them"),
        (signature(fields=","), "must be set together"),
        (signature(separator=""), "cannot be empty"),
        (signature(fields="", field="v1"), "cannot be empty"),
        (signature(algorithm="md5"), f"signatures[0].algorithm is 'md5': the allowed values are {ALLOWED}"),
        (signature(algorithm="hmac-sha265"), "is 'hmac-sha265': did you mean hmac-sha256? the allowed values are"),
        (signature(encoding="bas64"), "did you mean base64? the allowed values are base64, hex"),
        (definition(content=["jsn"]), "did you mean json? the allowed values are"),
        (signature(algorithm="ed25519"), '`key = "text"` is not a key format of ed25519'),
        (signature(key="public"), '`key = "public"` is not a key format of hmac-sha256'),
        (signature(template="{bod}"), "{bod} is not a known placeholder"),
        (signature(template=STAMPED), "no `timestamp` table says where the timestamp is"),
        (signature() | {"timestamp": {"header": "X-Time"}}, "does not cover the timestamp"),
        (signature(template="{body:id}") | {"timestamp": {"body": "sent"}}, "does not cover the timestamp"),
        (signature(template=STAMPED) | {"timestamp": {}}, "set exactly one of them"),
        (signature(template=STAMPED) | {"timestamp": {"header": "A", "body": "b"}}, "set exactly one of them"),
        (signature(template=STAMPED) | {"timestamp": {"field": "t"}}, "set the signature's `fields` too"),
    ],
)  # fmt: skip
def test_definition_that_cannot_work_is_an_error_that_says_why(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_provider("acme", table, "providers.acme")
    assert str(caught.value).startswith("providers.acme: ") and problem in str(caught.value)


@pytest.mark.parametrize("name", ["Acme", "a b", "", "-a", "a" * 64])
def test_provider_name_that_cannot_be_part_of_an_address_is_an_error(name: str) -> None:
    with pytest.raises(ConfigurationError):
        read_provider(name, definition(), f"providers.{name}")


def test_every_definition_can_be_encoded_and_read_again() -> None:
    """What `oncehook providers NAME --json` prints can be put under [providers.NAME] again."""
    for name in built_in_names():
        table = msgspec.to_builtins(built_in(name), builtin_types=[type(built_in(name).checked)])
        assert read_provider(name, {k: v for k, v in table.items() if v is not None}, name) == built_in(name)
