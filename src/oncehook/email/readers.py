"""Normalizes the payload of a receipt to email events. Holds the readers of SendGrid, Amazon SES and Postmark.

A reader never raises: a value that it cannot read is absent, and an event name that it does not know is `unknown`.
Payloads without an email event (inbound mail, a ping, news about a domain) give none. The tables map the providers'
event names.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, compose_key, normalise_address, normalise_message_id
from oncehook.email.mailgun import mailgun
from oncehook.email.more_readers import brevo, mailjet, mandrill, resend, sparkpost
from oncehook.email.payload_values import (
    Vocabulary,
    as_text,
    first_text,
    first_time,
    header_values,
    parse_json_text,
    read_metadata,
    read_tags,
    value_at,
)
from oncehook.providers.expressions import index_text

T = EmailType


def normalise(provider: str, payload: Any, *, event_id: str = "") -> list[EmailEvent]:
    """Return the email events in a receipt's payload, each with its key. Raises KeyError for an unknown provider.

    `event_id` is the event id of the receipt. It is the key if the payload has no other.
    """
    read = READERS[provider]
    events = [event for item in _items(payload) for event in read(item)]
    several = len(events) > 1
    return [_with_key(event, event_id, several) for event in events]


def _items(payload: Any) -> Iterable[dict[str, Any]]:
    return [item for item in (payload if isinstance(payload, list) else [payload]) if isinstance(item, dict)]


def _with_key(event: EmailEvent, event_id: str, several: bool) -> EmailEvent:
    if event.key:
        return event
    return msgspec.structs.replace(
        event, key=compose_key(event_id, event.recipient) if several else index_text(event_id) or ""
    )


# -- SendGrid -------------------------------------------------------------------------------------------------------

SENDGRID: Vocabulary = {
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
"""Reasons, by their beginning, for which SendGrid drops a message regardless of its recipient."""


def sendgrid(payload: dict[str, Any]) -> list[EmailEvent]:
    event_name = as_text(payload.get("event"))
    kind, bounce = SENDGRID.get(event_name or "", (T.UNKNOWN, None))
    if kind is T.BOUNCED and (payload.get("type") == "blocked" or str(payload.get("status", "")).startswith("4")):
        bounce = SOFT
    elif kind is T.REJECTED and str(payload.get("reason")).lower().startswith(_SENDGRID_NOT_THE_ADDRESS):
        bounce = None
    recipient, occurred = normalise_address(payload.get("email")), first_time(payload.get("timestamp"))
    sent = sendgrid_message_id(payload.get("sg_message_id")) or normalise_message_id(payload.get("smtp-id"))
    own = as_text(payload.get("sg_event_id"))
    return [
        EmailEvent(
            key=index_text(own)
            or compose_key(sent, event_name, payload.get("timestamp"), recipient, payload.get("url")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=occurred,
            bounce=bounce,
            reason=first_text(payload.get("reason"), payload.get("response")),
            tags=read_tags(payload.get("category")),
            metadata=read_metadata({name: value for name, value in payload.items() if name not in _SENDGRID_OWN}),
            raw=payload,
        )
    ]


def sendgrid_message_id(value: Any) -> str | None:
    """Return the id that SendGrid's API returned. `sg_message_id` is that id and the name of a server."""
    message_id = normalise_message_id(value)
    if message_id is None:
        return None
    for suffix in (".filter", ".recvd"):
        message_id = message_id.partition(suffix)[0] or message_id
    return message_id


# -- Amazon SES -----------------------------------------------------------------------------------------------------

SES: Mapping[str, tuple[EmailType, str, str | None]] = {  # type, key of its details, key of its recipients
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
_SES_BY_ONE_RECIPIENT = {T.OPENED, T.CLICKED, T.UNSUBSCRIBED, T.SUBSCRIBED}


def ses(payload: dict[str, Any]) -> list[EmailEvent]:
    """Read both forms, `notificationType` and `eventType`, with or without SNS's envelope. The key is the same."""
    content = payload.get("Message", payload)
    body = parse_json_text(content) if isinstance(content, str) else content
    if not isinstance(body, dict):
        return []
    event_name = as_text(body.get("eventType")) or as_text(body.get("notificationType"))
    mail = body.get("mail")
    if event_name is None or event_name in _SES_NO_FACT or not isinstance(mail, dict):
        return []
    kind, name, listed = SES.get(event_name, (T.UNKNOWN, "", None))
    facts = body.get(name)
    facts = facts if isinstance(facts, dict) else {}
    if kind is T.UNSUBSCRIBED and value_at(facts, "newTopicPreferences.unsubscribeAll") is False:
        kind = T.SUBSCRIBED
    if kind is T.COMPLAINED and facts.get("complaintFeedbackType") == "not-spam":
        kind = T.UNKNOWN  # the recipient moved the message out of the spam folder
    occurred = first_time(facts.get("timestamp"), mail.get("timestamp"), payload.get("Timestamp"))
    sent = normalise_message_id(mail.get("messageId"))
    identity = facts.get("feedbackId") or facts.get("timestamp") or mail.get("timestamp")
    reasons = (facts.get("reason"), facts.get("errorMessage"), facts.get("complaintFeedbackType"))
    return [
        EmailEvent(
            key=compose_key(sent, event_name, identity, recipient, facts.get("link")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=occurred,
            bounce=_SES_BOUNCE.get(as_text(facts.get("bounceType")) or "") if kind is T.BOUNCED else None,
            reason=first_text(
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
    """Return each recipient once, with the response of its server.

    For opens, clicks and unsubscribes of a mail to several recipients, SES does not name the recipient. They give one
    event without a recipient.
    """
    recipients = facts.get(listed) if listed else mail.get("destination")
    responses: dict[str, Any] = {}
    for item in recipients if isinstance(recipients, list) else []:
        address = normalise_address(item.get("emailAddress") if isinstance(item, dict) else item)
        if address is not None:
            responses[address] = item.get("diagnosticCode") if isinstance(item, dict) else None
    if not responses or (kind in _SES_BY_ONE_RECIPIENT and len(responses) > 1):
        return [(None, None)]
    return list(responses.items())


def _ses_tags(mail: dict[str, Any]) -> tuple[str, ...]:
    """Return the `X-Tag` headers, and the message tags as name:value. Amazon's own tags are left out."""
    tags = mail.get("tags")
    message_tags = [
        f"{name}:{value}"
        for name, values in (tags.items() if isinstance(tags, dict) else ())
        if not name.startswith("ses:") and isinstance(values, list)
        for value in values
        if isinstance(value, str)
    ]
    return read_tags(header_values(mail, "x-tag"), message_tags)


def _ses_metadata(mail: dict[str, Any]) -> dict[str, Any]:
    return read_metadata(next(iter(header_values(mail, "x-metadata")), None))


# -- Postmark -------------------------------------------------------------------------------------------------------

POSTMARK: Vocabulary = {
    "Delivery": (T.DELIVERED, None),
    "Bounce": (T.BOUNCED, None),
    "SpamComplaint": (T.COMPLAINED, None),
    "Open": (T.OPENED, None),
    "Click": (T.CLICKED, None),
    "SubscriptionChange": (T.UNSUBSCRIBED, None),
}
POSTMARK_BOUNCE: Vocabulary = {
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
    event_name = as_text(payload.get("RecordType"))
    if event_name in (None, "Inbound") or payload.get("Type") == "InboundError":
        return []
    kind, bounce = POSTMARK.get(event_name, (T.UNKNOWN, None))
    if kind in (T.BOUNCED, T.COMPLAINED):
        kind, bounce = POSTMARK_BOUNCE.get(str(payload.get("Type")), (kind, bounce))
    elif kind is T.UNSUBSCRIBED:
        stops = payload.get("SuppressSending", True)
        reason = str(payload.get("SuppressionReason")) if stops else "Subscribe"
        kind, bounce = POSTMARK_BOUNCE.get(reason, (kind, bounce))
    times = [payload.get(name) for name in ("DeliveredAt", "BouncedAt", "ReceivedAt", "ChangedAt")]
    recipient = normalise_address(payload.get("Email")) or normalise_address(payload.get("Recipient"))
    sent = normalise_message_id(payload.get("MessageID"))
    own = as_text(payload.get("ID"))
    facts = [sent, recipient, next(filter(None, times), None), payload.get("OriginalLink")]
    return [
        EmailEvent(
            key=compose_key(event_name, own) if own else compose_key(event_name, *facts),
            type=kind,
            message_id=None if sent is not None and not sent.strip("0-") else sent,
            recipient=recipient,
            occurred_at=first_time(*times),
            bounce=bounce,
            reason=first_text(payload.get("Details"), payload.get("Description"), payload.get("SuppressionReason")),
            tags=read_tags(payload.get("Tag")),
            metadata=read_metadata(payload.get("Metadata")),
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
"""Provider → its reader. A source with `email = true` has one of these providers."""
