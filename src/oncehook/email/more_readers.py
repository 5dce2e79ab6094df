"""The readers of Resend, SparkPost, Mandrill, Mailjet and Brevo. See `readers.py`."""

from typing import Any

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, compose_key, normalise_address, normalise_message_id
from oncehook.email.payload_values import (
    Vocabulary,
    as_text,
    first_text,
    first_time,
    header_values,
    parse_json_list,
    read_metadata,
    read_tags,
    value_at,
)
from oncehook.providers.expressions import index_text

T = EmailType


# -- Resend ---------------------------------------------------------------------------------------------------------

RESEND: Vocabulary = {
    "email.scheduled": (T.QUEUED, None),
    "email.sent": (T.SENT, None),
    "email.delivered": (T.DELIVERED, None),
    "email.delivery_delayed": (T.DEFERRED, None),
    "email.bounced": (T.BOUNCED, None),
    "email.complained": (T.COMPLAINED, None),
    "email.opened": (T.OPENED, None),
    "email.clicked": (T.CLICKED, None),
    "email.failed": (T.FAILED, None),
    "email.suppressed": (T.REJECTED, HARD),
}
_RESEND_BOUNCE = {"Permanent": HARD, "Transient": SOFT, "Temporary": SOFT}
_RESEND_HARD = ("hard bounce", "permanently rejected")
"""Phrases of a permanent bounce in older payloads, which have no `bounce.type`."""


def resend(payload: dict[str, Any]) -> list[EmailEvent]:
    """Read an event of Resend. For a mail to several recipients, Resend does not name the recipient of an event."""
    event_name, data = as_text(payload.get("type")) or "", payload.get("data")
    if not event_name.startswith("email.") or event_name == "email.received" or not isinstance(data, dict):
        return []
    kind, bounce = RESEND.get(event_name, (T.UNKNOWN, None))
    if kind is T.BOUNCED:
        bounce_message = str(value_at(data, "bounce.message")).lower()
        untyped = HARD if any(phrase in bounce_message for phrase in _RESEND_HARD) else None
        bounce = _RESEND_BOUNCE.get(str(value_at(data, "bounce.type") or ""), untyped)
    to = [data.get("to")] if isinstance(data.get("to"), str) else data.get("to")
    lists = (to, data.get("cc"), data.get("bcc"))
    recipients = [recipient for each in lists if isinstance(each, list) for recipient in each]
    tags = data.get("tags")
    named_tags = [f"{name}:{value}" for name, value in tags.items()] if isinstance(tags, dict) else []
    listed_tags = parse_json_list(next(iter(header_values(data, "x-tags")), None))
    return [
        EmailEvent(
            key="",  # the svix-id, which is the receipt's event id
            type=kind,
            message_id=normalise_message_id(data.get("email_id")),
            recipient=normalise_address(recipients[0]) if len(recipients) == 1 else None,
            occurred_at=first_time(payload.get("created_at"), data.get("created_at")),
            bounce=bounce,
            reason=first_text(
                value_at(data, "bounce.message"), value_at(data, "failed.reason"), value_at(data, "suppressed.message")
            ),
            tags=read_tags(named_tags, listed_tags),
            metadata=read_metadata(next(iter(header_values(data, "x-metadata")), None)),
            raw=payload,
        )
    ]


# -- SparkPost ------------------------------------------------------------------------------------------------------

SPARKPOST: Vocabulary = {
    "injection": (T.QUEUED, None),
    "delivery": (T.DELIVERED, None),
    "delay": (T.DEFERRED, None),
    "bounce": (T.BOUNCED, None),
    "out_of_band": (T.BOUNCED, None),
    "policy_rejection": (T.REJECTED, None),
    "generation_rejection": (T.REJECTED, None),
    "generation_failure": (T.FAILED, None),
    "spam_complaint": (T.COMPLAINED, None),
    "open": (T.OPENED, None),
    "amp_open": (T.OPENED, None),
    "click": (T.CLICKED, None),
    "amp_click": (T.CLICKED, None),
    "list_unsubscribe": (T.UNSUBSCRIBED, None),
    "link_unsubscribe": (T.UNSUBSCRIBED, None),
}
SPARKPOST_CLASS: Vocabulary = {
    "10": (T.BOUNCED, HARD),
    "30": (T.BOUNCED, HARD),
    "90": (T.UNSUBSCRIBED, None),
    "60": (T.AUTORESPONDED, None),
    "100": (T.AUTORESPONDED, None),
    "80": (T.SUBSCRIBED, None),
    **{str(number): (T.BOUNCED, SOFT) for number in (20, 21, 22, 23, 24, 40, 70)},
}
"""SparkPost's bounce classes. Blocks (25, 50–54) and undetermined bounces (1) say nothing about the address."""


_SPARKPOST_LISTED = "suppress"
"""Part of the reason if the recipient is on SparkPost's suppression list."""


def sparkpost(payload: dict[str, Any]) -> list[EmailEvent]:
    inner = payload.get("msys")
    inner = inner if isinstance(inner, dict) else {}
    events = [value for value in inner.values() if isinstance(value, dict)]
    if len(events) != 1 or "relay_message" in inner or not as_text(events[0].get("type")):
        return []  # a ping, or an inbound mail
    data = events[0]
    kind, bounce = SPARKPOST.get(str(data["type"]), (T.UNKNOWN, None))
    if kind is T.BOUNCED:
        kind, bounce = SPARKPOST_CLASS.get(str(data.get("bounce_class")), (kind, None))
    elif kind is T.REJECTED and _SPARKPOST_LISTED in f"{data.get('raw_reason')} {data.get('reason')}".lower():
        bounce = HARD
    recipient = normalise_address(data.get("raw_rcpt_to")) or normalise_address(data.get("rcpt_to"))
    return [
        EmailEvent(
            key=index_text(as_text(data.get("event_id"))) or "",
            type=kind,
            message_id=normalise_message_id(data.get("transmission_id"))
            or normalise_message_id(data.get("message_id")),
            recipient=recipient,
            occurred_at=first_time(data.get("timestamp")),
            bounce=bounce,
            reason=first_text(data.get("raw_reason"), data.get("reason")),
            tags=read_tags(data.get("campaign_id")),
            metadata=read_metadata(data.get("rcpt_meta")),
            raw=payload,
        )
    ]


# -- Mandrill -------------------------------------------------------------------------------------------------------

MANDRILL: Vocabulary = {
    "send": (T.SENT, None),
    "delivered": (T.DELIVERED, None),
    "deferral": (T.DEFERRED, None),
    "hard_bounce": (T.BOUNCED, HARD),
    "soft_bounce": (T.BOUNCED, SOFT),
    "open": (T.OPENED, None),
    "click": (T.CLICKED, None),
    "spam": (T.COMPLAINED, None),
    "unsub": (T.UNSUBSCRIBED, None),
    "reject": (T.REJECTED, HARD),
}
MANDRILL_NOT_THE_ADDRESS = {"soft-bounce", "invalid-sender", "test-mode-limit", "unsigned", "rule"}
"""Mandrill's reasons that are not about the recipient's address."""


def mandrill(payload: dict[str, Any]) -> list[EmailEvent]:
    event_name = as_text(payload.get("event")) or as_text(payload.get("type"))
    if event_name in (None, "inbound"):
        return []
    kind, bounce = MANDRILL.get(event_name, (T.UNKNOWN, None))
    msg = payload.get("msg")
    msg = msg if isinstance(msg, dict) else {}
    rejected = (
        as_text(value_at(payload, "reject.reason"))
        or as_text(value_at(msg, "reject.reason"))
        or as_text(msg.get("reject_reason"))
    )
    if kind is T.REJECTED and rejected in MANDRILL_NOT_THE_ADDRESS:
        bounce = None
    sent = normalise_message_id(payload.get("_id")) or normalise_message_id(msg.get("_id"))
    recipient = normalise_address(msg.get("email")) or normalise_address(value_at(payload, "reject.email"))
    return [
        EmailEvent(
            key=compose_key(
                sent, event_name, payload.get("ts"), recipient, payload.get("url")
            ),  # `_id` is the id of the message
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=first_time(payload.get("ts")),
            bounce=bounce,
            reason=first_text(
                msg.get("diag"),
                msg.get("bounce_description"),
                value_at(payload, "reject.detail"),
                rejected,
            ),
            tags=read_tags(msg.get("tags")),
            metadata=read_metadata(msg.get("metadata")),
            raw=payload,
        )
    ]


# -- Mailjet --------------------------------------------------------------------------------------------------------

MAILJET: Vocabulary = {
    "sent": (T.DELIVERED, None),  # Mailjet reports "sent" once the recipient's server has accepted the message
    "open": (T.OPENED, None),
    "click": (T.CLICKED, None),
    "bounce": (T.BOUNCED, SOFT),
    "blocked": (T.REJECTED, HARD),
    "spam": (T.COMPLAINED, None),
    "unsub": (T.UNSUBSCRIBED, None),
}
_MAILJET_NOT_THE_ADDRESS = """
quota exceeded|relay/access denied|greylisted|sender blocked|content blocked|policy issue|spam blocked|system issue
protocol issue|connection issue|duplicate in campaign|bad or empty template|error in template language
"""
MAILJET_NOT_THE_ADDRESS = frozenset(_MAILJET_NOT_THE_ADDRESS.strip().replace("\n", "|").split("|"))
"""Mailjet's errors that are not about the recipient's address."""


def mailjet(payload: dict[str, Any]) -> list[EmailEvent]:
    event_name = as_text(payload.get("event"))
    if event_name is None:
        return []
    kind, bounce = MAILJET.get(event_name, (T.UNKNOWN, None))
    is_hard = payload.get("hard_bounce") is True
    if payload.get("error") == "greylisted" and not is_hard:
        kind, bounce = T.DEFERRED, None  # "delivery will be re-attempted"
    elif kind is T.BOUNCED and is_hard:
        bounce = HARD
    elif kind is T.REJECTED and as_text(payload.get("error")) in MAILJET_NOT_THE_ADDRESS:
        bounce = None
    sent, recipient = normalise_message_id(payload.get("MessageID")), normalise_address(payload.get("email"))
    return [
        EmailEvent(
            key=compose_key(sent, event_name, payload.get("time"), recipient, payload.get("url")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=first_time(payload.get("time")),
            bounce=bounce,
            reason=first_text(payload.get("smtp_reply"), payload.get("comment"), payload.get("error")),
            tags=read_tags(payload.get("customcampaign")),
            metadata=read_metadata(payload.get("Payload")),
            raw=payload,
        )
    ]


# -- Brevo ----------------------------------------------------------------------------------------------------------

BREVO: Vocabulary = {
    "request": (T.QUEUED, None),
    "deferred": (T.DEFERRED, None),
    "delivered": (T.DELIVERED, None),
    "hard_bounce": (T.BOUNCED, HARD),
    "invalid_email": (T.BOUNCED, HARD),
    "soft_bounce": (T.BOUNCED, SOFT),
    "blocked": (T.REJECTED, HARD),
    "error": (T.FAILED, None),
    "spam": (T.COMPLAINED, None),
    "complaint": (T.COMPLAINED, None),
    "unique_opened": (T.OPENED, None),
    "opened": (T.OPENED, None),
    "unique_proxy_open": (T.OPENED, None),
    "proxy_open": (T.OPENED, None),
    "click": (T.CLICKED, None),
    "unsubscribe": (T.UNSUBSCRIBED, None),
    "unsubscribed": (
        T.UNSUBSCRIBED,
        None,
    ),  # the name in Brevo's API; which of the two its payloads use is not confirmed
    "list_addition": (T.SUBSCRIBED, None),
}


def brevo(payload: dict[str, Any]) -> list[EmailEvent]:
    """Read an event of Brevo. Its `id` does not identify an event, and only `ts_epoch` is always UTC."""
    event_name = as_text(payload.get("event"))
    if event_name is None or "items" in payload:
        return []
    kind, bounce = BREVO.get(event_name, (T.UNKNOWN, None))
    sent, recipient = normalise_message_id(payload.get("message-id")), normalise_address(payload.get("email"))
    time = payload.get("ts_epoch") or payload.get("ts_event") or payload.get("ts")
    return [
        EmailEvent(
            key=compose_key(sent, event_name, time, recipient, payload.get("link")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=first_time(time),
            bounce=bounce,
            reason=first_text(payload.get("reason")),
            tags=read_tags(payload.get("tags") or payload.get("tag")),
            metadata=read_metadata(payload.get("X-Mailin-custom")),
            raw=payload,
        )
    ]
