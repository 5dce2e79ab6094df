"""Cross-checks with vendors' libraries: each side verifies what the other signs."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import gocardless_pro.webhooks
import pytest
import resend
import standardwebhooks
import stripe
import svix.webhooks
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from gocardless_pro.errors import InvalidSignatureError
from sendgrid.helpers.eventwebhook import EventWebhook
from slack_sdk.signature import SignatureVerifier

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.providers.verify import Verifier
from tests.support.providers import sender

pytestmark = pytest.mark.xdist_group("vendors")  # one process imports the libraries
BODIES = {
    "plain": '{"id":"evt_1","type":"invoice.paid"}',
    "spaces and lines": '{\r\n  "id" : "evt_1",\n\t"type":"t"\n}\n',
    "beyond ASCII": json.dumps({"id": "evt_1", "text": "café ☃ 🎉 \u0000"}, ensure_ascii=False),
    "escapes": '{"id":"evt_1","text":"\\u2665 \\ud83d\\ude00 \\/"}',
    "an array": '[{"sg_event_id":"a"},\r\n{"sg_event_id":"b"}]\r\n',
    "a form": "token=x&command=%2Fwebhook&text=",
    "empty": "",
}
bodies = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
STRIPE, SLACK, WHSEC = "whsec_test_secret", "8f742231b10e8888abcd99yyyzzz85a5", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SENDGRID = sender("sendgrid").pair()


def now() -> int:
    return int(time.time())


def ours_accepts(name: str, secret: str, body: str, headers: dict[str, str]) -> bool:
    try:
        return Verifier(built_in(name), [secret], where="x").verify(Delivery.of(body.encode(), headers), now()) == 0
    except Rejected:
        return False


def ours_signs(name: str, secret: str, body: str, **headers: str) -> dict[str, str]:
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    signed, content = sign(built_in(name), body.encode(), secret, headers=given, now=now())
    assert content == body.encode()
    return signed


# -- the vendor signs, Oncehook verifies ----------------------------------------------------------------------------


def stripe_signs(body: str) -> dict[str, str]:
    return {"Stripe-Signature": stripe.WebhookSignature.generate_signature_header(body, STRIPE, now())}


def slack_signs(body: str) -> dict[str, str]:
    stamp = str(now())
    signature = SignatureVerifier(SLACK).generate_signature(timestamp=stamp, body=body)
    assert signature is not None
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": signature}


def standard_headers(webhook: Any, body: str) -> dict[str, str]:
    moment = datetime.fromtimestamp(now(), UTC)
    signature = webhook.sign("msg_1", moment, body)
    return {"webhook-id": "msg_1", "webhook-timestamp": f"{moment.timestamp():.0f}", "webhook-signature": signature}


def standard_webhooks_signs(library: Any) -> Callable[[str], dict[str, str]]:
    def signs(body: str) -> dict[str, str]:
        return standard_headers(library(WHSEC), body)

    return signs


def resend_signs(body: str) -> dict[str, str]:
    """Resend's library only verifies. Its service sends through Svix."""
    signed = standard_headers(svix.webhooks.Webhook(WHSEC), body)
    return {name.replace("webhook-", "svix-"): value for name, value in signed.items()}


def sendgrid_signs(body: str) -> dict[str, str]:
    """The vendor's library only verifies. This signs as its service does."""
    key = load_pem_private_key(SENDGRID.signing.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    stamp = str(now())
    signature = key.sign(stamp.encode() + body.encode(), ec.ECDSA(hashes.SHA256()))
    prefix = "X-Twilio-Email-Event-Webhook-"
    return {prefix + "Timestamp": stamp, prefix + "Signature": base64.b64encode(signature).decode()}


SIGNERS: dict[str, tuple[str, str, Callable[[str], dict[str, str]]]] = {
    "stripe": ("stripe", STRIPE, stripe_signs),
    "slack_sdk": ("slack", SLACK, slack_signs),
    "standardwebhooks": ("standard-webhooks", WHSEC, standard_webhooks_signs(standardwebhooks.Webhook)),
    "svix": ("standard-webhooks", WHSEC, standard_webhooks_signs(svix.webhooks.Webhook)),
    "svix for Resend": ("resend", WHSEC, resend_signs),
    "standardwebhooks for OpenAI": ("openai", WHSEC, standard_webhooks_signs(standardwebhooks.Webhook)),
    "sendgrid": ("sendgrid", SENDGRID.verifying, sendgrid_signs),
}


@bodies
@pytest.mark.parametrize("library", SIGNERS)
def test_oncehook_accepts_what_the_vendors_library_signs(library: str, body: str) -> None:
    name, secret, signs = SIGNERS[library]
    headers = signs(body)
    assert ours_accepts(name, secret, body, headers)
    assert not ours_accepts(name, secret, body + " ", headers)


# -- Oncehook signs, the vendor verifies ----------------------------------------------------------------------------


def stripe_accepts(body: str, headers: dict[str, str]) -> bool:
    try:
        return bool(stripe.WebhookSignature.verify_header(body, headers["Stripe-Signature"], STRIPE, 300))
    except stripe.SignatureVerificationError:
        return False


def slack_accepts(body: str, headers: dict[str, str]) -> bool:
    return SignatureVerifier(SLACK).is_valid_request(body, headers)


def standard_webhooks_accepts(library: Any) -> Callable[[str, dict[str, str]], bool]:
    def accepts(body: str, headers: dict[str, str]) -> bool:
        options = {"json_parse": False} if library is standardwebhooks.Webhook else {}
        try:
            library(WHSEC).verify(body, headers, **options)
        except (standardwebhooks.WebhookVerificationError, svix.webhooks.WebhookVerificationError):
            return False
        return True

    return accepts


def sendgrid_accepts(body: str, headers: dict[str, str]) -> bool:
    prefix = "X-Twilio-Email-Event-Webhook-"
    webhook = EventWebhook(SENDGRID.verifying)
    return bool(webhook.verify_signature(body, headers[prefix + "Signature"], headers[prefix + "Timestamp"]))


@cache
def openai_client() -> Any:
    import openai  # takes long, in every process that collects tests

    return openai.OpenAI(api_key="none")


def openai_accepts(body: str, headers: dict[str, str]) -> bool:
    import openai

    try:
        openai_client().webhooks.verify_signature(body, headers, secret=WHSEC)
    except openai.InvalidWebhookSignatureError:
        return False
    return True


def resend_accepts(body: str, headers: dict[str, str]) -> bool:
    given = {"id": headers["svix-id"], "timestamp": headers["svix-timestamp"], "signature": headers["svix-signature"]}
    try:
        resend.Webhooks.verify({"payload": body, "headers": given, "webhook_secret": WHSEC})  # type: ignore[typeddict-item]
    except ValueError as error:
        return "failed to parse" in str(error)  # the signature is valid, but the library expects JSON
    return True


def workos_accepts(body: str, headers: dict[str, str]) -> bool:
    from workos.webhooks import Webhooks as WorkOS  # as above

    try:
        WorkOS(None).verify_header(  # type: ignore[arg-type]  # nothing is asked of a client
            event_body=body, event_signature=headers["WorkOS-Signature"], secret=SLACK
        )
    except ValueError:
        return False
    return True


def gocardless_accepts(body: str, headers: dict[str, str]) -> bool:
    try:
        gocardless_pro.webhooks.parse(body, SLACK, headers["Webhook-Signature"])
    except InvalidSignatureError:
        return False
    except (ValueError, LookupError, TypeError):
        return True  # the signature is valid, but the library expects another body
    return True


VERIFIERS: dict[str, tuple[str, str, Callable[[str, dict[str, str]], bool]]] = {
    "stripe": ("stripe", STRIPE, stripe_accepts),
    "slack_sdk": ("slack", SLACK, slack_accepts),
    "standardwebhooks": ("standard-webhooks", WHSEC, standard_webhooks_accepts(standardwebhooks.Webhook)),
    "svix": ("standard-webhooks", WHSEC, standard_webhooks_accepts(svix.webhooks.Webhook)),
    "sendgrid": ("sendgrid", SENDGRID.signing, sendgrid_accepts),
    "openai": ("openai", WHSEC, openai_accepts),
    "resend": ("resend", WHSEC, resend_accepts),
    "workos": ("workos", SLACK, workos_accepts),
    "gocardless_pro": ("gocardless", SLACK, gocardless_accepts),
}


TRIED = [(library, body) for library in VERIFIERS for body in BODIES]
TRIED.remove(("resend", "empty"))  # its library rejects this body, signed or not


@pytest.mark.parametrize(("library", "kind"), TRIED)
def test_vendors_library_accepts_what_oncehook_signs(library: str, kind: str) -> None:
    name, secret, accepts = VERIFIERS[library]
    body = BODIES[kind]
    headers = ours_signs(name, secret, body, webhook_id="msg_1", svix_id="msg_1")
    assert accepts(body, headers)
    assert not accepts(body + " ", headers)


def test_secret_without_prefix_or_padding_is_read_like_standardwebhooks_reads_it() -> None:
    """The library adds missing padding, and accepts a secret without its prefix."""
    raw = b"a key of twenty-five byte"
    text = base64.b64encode(raw).decode()
    assert text.endswith("==")
    for secret in ("whsec_" + text, text, "whsec_" + text.rstrip("="), text.rstrip("=")):
        headers = standard_headers(standardwebhooks.Webhook(secret), "{}")
        assert ours_accepts("standard-webhooks", secret, "{}", headers)


# -- where Oncehook is stricter -------------------------------------------------------------------------------------


def test_future_timestamp_that_stripes_library_accepts_is_stale() -> None:
    later = now() + 10 * 365 * 86400
    header = stripe.WebhookSignature.generate_signature_header("{}", STRIPE, later)
    assert stripe_accepts("{}", {"Stripe-Signature": header})
    assert not ours_accepts("stripe", STRIPE, "{}", {"Stripe-Signature": header})


def test_old_timestamp_that_sendgrids_library_accepts_is_stale() -> None:
    headers, _ = sign(built_in("sendgrid"), b"[]", SENDGRID.signing, now=now() - 2 * 86400)
    assert sendgrid_accepts("[]", headers)
    assert not ours_accepts("sendgrid", SENDGRID.verifying, "[]", headers)
