"""Email events of every provider, normalised: the payload of one receipt in, facts out.

A reader never fails: what it cannot read is absent, and a word that it does not know is `unknown`. What is no email
event at all (an inbound mail, a ping, news of a domain) is no fact. The tables are the providers' own words.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, address, compose, message
from oncehook.email.mailgun import mailgun
from oncehook.email.reading import Words, at, headers, inner, metadata, tags, text, when, why
from oncehook.email.senders import brevo, mailjet, mandrill, resend, sparkpost
from oncehook.providers.expressions import index_text

T = EmailType


def normalise(provider: str, payload: Any, *, event_id: str = "") -> list[EmailEvent]:
    """The email events in the payload of one receipt, each with its key. Raises KeyError for an unknown provider.

    `event_id` is the receipt's: the key where the provider's payload has none of its own.
    """
    read = READERS[provider]
    events = [event for one in _each(payload) for event in read(one)]
    several = len(events) > 1
    return [_keyed(event, event_id, several) for event in events]


def _each(payload: Any) -> Iterable[dict[str, Any]]:
    return [one for one in (payload if isinstance(payload, list) else [payload]) if isinstance(one, dict)]


def _keyed(event: EmailEvent, event_id: str, several: bool) -> EmailEvent:
    if event.key:
        return event
    return msgspec.structs.replace(
        event, key=compose(event_id, event.recipient) if several else index_text(event_id) or ""
    )


# -- SendGrid -------------------------------------------------------------------------------------------------------

SENDGRID: Words = {
    "processed": (T.QUEUED, None),
    "deferred": (T.DEFERRED, None),
    "delivered": (T.DELIVERED, None),
    "bounce": (T.BOUNCED, HARD),
    "dropped": (T.REJECTED, HARD),
    "open": (T.OPENED, None),
    "click": (T.CLICKED, None),
    "spamreport": (T.COMPLAINED, None),
    "unsubscribe": (T.UNSUBSCRIBED, None),
    "group_unsubscribe": (T.UNSUBSCRIBED, None),
    "group_resubscribe": (T.SUBSCRIBED, None),
}
_SENDGRID_FIELDS = """
asm_group_id attempt bounce_classification category cert_err email event ip marketing_campaign_id
marketing_campaign_name marketing_campaign_split_id marketing_campaign_version newsletter pool post_type reason
response send_at sg_content_type sg_event_id sg_machine_open sg_message_id sg_template_id sg_template_name
singlesend_id singlesend_name smtp-id status template_id timestamp tls type url url_offset useragent
"""
_SENDGRID_OWN = frozenset(_SENDGRID_FIELDS.split())
_SENDGRID_NOT_THE_ADDRESS = ("spam content", "recipient list over package quota", "invalid smtpapi header")
"""Beginnings of the reasons for which SendGrid drops a message whatever its recipient is."""


def sendgrid(payload: dict[str, Any]) -> list[EmailEvent]:
    word = text(payload.get("event"))
    kind, bounce = SENDGRID.get(word or "", (T.UNKNOWN, None))
    if kind is T.BOUNCED and (payload.get("type") == "blocked" or str(payload.get("status", "")).startswith("4")):
        bounce = SOFT
    elif kind is T.REJECTED and str(payload.get("reason")).lower().startswith(_SENDGRID_NOT_THE_ADDRESS):
        bounce = None
    recipient, occurred = address(payload.get("email")), when(payload.get("timestamp"))
    sent = sendgrid_message(payload.get("sg_message_id")) or message(payload.get("smtp-id"))
    own = text(payload.get("sg_event_id"))
    return [
        EmailEvent(
            key=index_text(own) or compose(sent, word, payload.get("timestamp"), recipient, payload.get("url")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=occurred,
            bounce=bounce,
            reason=why(payload.get("reason"), payload.get("response")),
            tags=tags(payload.get("category")),
            metadata=metadata({name: value for name, value in payload.items() if name not in _SENDGRID_OWN}),
            raw=payload,
        )
    ]


def sendgrid_message(given: Any) -> str | None:
    """The id that SendGrid answered the send with: `sg_message_id` is that and the server that filtered it."""
    found = message(given)
    if found is None:
        return None
    for mark in (".filter", ".recvd"):
        found = found.partition(mark)[0] or found
    return found


# -- Amazon SES -----------------------------------------------------------------------------------------------------

SES: Mapping[str, tuple[EmailType, str, str | None]] = {  # type, where its facts are, where its recipients are
    "Send": (T.SENT, "send", None),
    "Delivery": (T.DELIVERED, "delivery", "recipients"),
    "Bounce": (T.BOUNCED, "bounce", "bouncedRecipients"),
    "Complaint": (T.COMPLAINED, "complaint", "complainedRecipients"),
    "Reject": (T.REJECTED, "reject", None),
    "Open": (T.OPENED, "open", None),
    "Click": (T.CLICKED, "click", None),
    "Rendering Failure": (T.FAILED, "failure", None),
    "DeliveryDelay": (T.DEFERRED, "deliveryDelay", "delayedRecipients"),
    "Subscription": (T.UNSUBSCRIBED, "subscription", None),
}
_SES_NO_FACT = {"Received", "AmazonSnsSubscriptionSucceeded"}
_SES_BOUNCE = {"Permanent": HARD, "Transient": SOFT}
_SES_OF_ONE = {T.OPENED, T.CLICKED, T.UNSUBSCRIBED, T.SUBSCRIBED}


def ses(payload: dict[str, Any]) -> list[EmailEvent]:
    """Both forms, `notificationType` and `eventType`, in SNS's envelope or bare: the same fact has the same key."""
    given = payload.get("Message", payload)
    body = inner(given) if isinstance(given, str) else given
    if not isinstance(body, dict):
        return []
    word = text(body.get("eventType")) or text(body.get("notificationType"))
    mail = body.get("mail")
    if word is None or word in _SES_NO_FACT or not isinstance(mail, dict):
        return []
    kind, name, listed = SES.get(word, (T.UNKNOWN, "", None))
    facts = body.get(name)
    facts = facts if isinstance(facts, dict) else {}
    if kind is T.UNSUBSCRIBED and at(facts, "newTopicPreferences.unsubscribeAll") is False:
        kind = T.SUBSCRIBED
    if kind is T.COMPLAINED and facts.get("complaintFeedbackType") == "not-spam":
        kind = T.UNKNOWN  # the recipient took the message out of the spam folder
    occurred = when(facts.get("timestamp"), mail.get("timestamp"), payload.get("Timestamp"))
    sent = message(mail.get("messageId"))
    told = facts.get("feedbackId") or facts.get("timestamp") or mail.get("timestamp")
    reasons = (facts.get("reason"), facts.get("errorMessage"), facts.get("complaintFeedbackType"))
    return [
        EmailEvent(
            key=compose(sent, word, told, recipient, facts.get("link")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=occurred,
            bounce=_SES_BOUNCE.get(text(facts.get("bounceType")) or "") if kind is T.BOUNCED else None,
            reason=why(
                diagnosis, *reasons, facts.get("bounceSubType"), facts.get("smtpResponse"), facts.get("delayType")
            ),
            tags=_ses_tags(mail),
            metadata=_ses_metadata(mail),
            raw=payload,
        )
        for recipient, diagnosis in _ses_recipients(kind, facts, listed, mail)
    ]


def _ses_recipients(
    kind: EmailType, facts: dict[str, Any], listed: str | None, mail: dict[str, Any]
) -> list[tuple[str | None, Any]]:
    """Each recipient once, with what its server said.

    For opens, clicks and unsubscribes of a mail to several, SES does not say which recipient it was: one fact of none.
    """
    given = facts.get(listed) if listed else mail.get("destination")
    found: dict[str, Any] = {}
    for one in given if isinstance(given, list) else []:
        to = address(one.get("emailAddress") if isinstance(one, dict) else one)
        if to is not None:
            found[to] = one.get("diagnosticCode") if isinstance(one, dict) else None
    if not found or (kind in _SES_OF_ONE and len(found) > 1):
        return [(None, None)]
    return list(found.items())


def _ses_tags(mail: dict[str, Any]) -> tuple[str, ...]:
    """`X-Tag` headers, and the message tags of a configuration set as name:value; Amazon's own are left out."""
    given = mail.get("tags")
    own = [
        f"{name}:{value}"
        for name, values in (given.items() if isinstance(given, dict) else ())
        if not name.startswith("ses:") and isinstance(values, list)
        for value in values
        if isinstance(value, str)
    ]
    return tags(headers(mail, "x-tag"), own)


def _ses_metadata(mail: dict[str, Any]) -> dict[str, Any]:
    return metadata(next(iter(headers(mail, "x-metadata")), None))


# -- Postmark -------------------------------------------------------------------------------------------------------

POSTMARK: Words = {
    "Delivery": (T.DELIVERED, None),
    "Bounce": (T.BOUNCED, None),
    "SpamComplaint": (T.COMPLAINED, None),
    "Open": (T.OPENED, None),
    "Click": (T.CLICKED, None),
    "SubscriptionChange": (T.UNSUBSCRIBED, None),
}
POSTMARK_BOUNCE: Words = {
    "HardBounce": (T.BOUNCED, HARD),
    "SoftBounce": (T.BOUNCED, SOFT),
    "Transient": (T.DEFERRED, None),
    "DnsError": (T.DEFERRED, None),
    "OpenRelayTest": (T.DEFERRED, None),
    "AutoResponder": (T.AUTORESPONDED, None),
    "AddressChange": (T.AUTORESPONDED, None),
    "ChallengeVerification": (T.AUTORESPONDED, None),
    "VirusNotification": (T.BOUNCED, None),
    "SpamNotification": (T.COMPLAINED, None),
    "SpamComplaint": (T.COMPLAINED, None),
    "BadEmailAddress": (T.REJECTED, HARD),
    "ManuallyDeactivated": (T.REJECTED, HARD),
    "Unconfirmed": (T.REJECTED, None),
    "Blocked": (T.REJECTED, None),
    "DMARCPolicy": (T.REJECTED, None),
    "SMTPApiError": (T.FAILED, None),
    "TemplateRenderingFailed": (T.FAILED, None),
    "Subscribe": (T.SUBSCRIBED, None),
    "Unsubscribe": (T.UNSUBSCRIBED, None),
    "ManualSuppression": (T.UNSUBSCRIBED, None),
    "Unknown": (T.UNKNOWN, None),
}


def postmark(payload: dict[str, Any]) -> list[EmailEvent]:
    word = text(payload.get("RecordType"))
    if word in (None, "Inbound") or payload.get("Type") == "InboundError":
        return []
    kind, bounce = POSTMARK.get(word, (T.UNKNOWN, None))
    if kind in (T.BOUNCED, T.COMPLAINED):
        kind, bounce = POSTMARK_BOUNCE.get(str(payload.get("Type")), (kind, bounce))
    elif kind is T.UNSUBSCRIBED:
        stops = payload.get("SuppressSending", True)
        given = str(payload.get("SuppressionReason")) if stops else "Subscribe"
        kind, bounce = POSTMARK_BOUNCE.get(given, (kind, bounce))
    times = [payload.get(name) for name in ("DeliveredAt", "BouncedAt", "ReceivedAt", "ChangedAt")]
    recipient = address(payload.get("Email")) or address(payload.get("Recipient"))
    sent = message(payload.get("MessageID"))
    own = text(payload.get("ID"))
    facts = [sent, recipient, next(filter(None, times), None), payload.get("OriginalLink")]
    return [
        EmailEvent(
            key=compose(word, own) if own else compose(word, *facts),
            type=kind,
            message_id=None if sent is not None and not sent.strip("0-") else sent,
            recipient=recipient,
            occurred_at=when(*times),
            bounce=bounce,
            reason=why(payload.get("Details"), payload.get("Description"), payload.get("SuppressionReason")),
            tags=tags(payload.get("Tag")),
            metadata=metadata(payload.get("Metadata")),
            raw=payload,
        )
    ]


Read = Callable[[dict[str, Any]], list[EmailEvent]]

READERS: Mapping[str, Read] = {
    "sendgrid": sendgrid,
    "ses": ses,
    "postmark": postmark,
    "mailgun": mailgun,
    "resend": resend,
    "sparkpost": sparkpost,
    "mandrill": mandrill,
    "mailjet": mailjet,
    "brevo": brevo,
}
"""Who can be read: a source with `email = true` is of one of these."""
