"""The readers of Resend, SparkPost, Mandrill, Mailjet and Brevo; see `events`."""

from typing import Any

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, address, compose, message
from oncehook.email.reading import Words, at, headers, metadata, read_list, tags, text, when, why
from oncehook.providers.expressions import index_text

T = EmailType


# -- Resend ---------------------------------------------------------------------------------------------------------

RESEND: Words = {
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
"""What the message of a permanent bounce says in payloads that have no `bounce.type` yet."""


def resend(payload: dict[str, Any]) -> list[EmailEvent]:
    """A mail to several is one event for each of them, and none says whose: then it is nobody's."""
    word, data = text(payload.get("type")) or "", payload.get("data")
    if not word.startswith("email.") or word == "email.received" or not isinstance(data, dict):
        return []
    kind, bounce = RESEND.get(word, (T.UNKNOWN, None))
    if kind is T.BOUNCED:
        said = str(at(data, "bounce.message")).lower()
        untyped = HARD if any(words in said for words in _RESEND_HARD) else None
        bounce = _RESEND_BOUNCE.get(str(at(data, "bounce.type") or ""), untyped)
    to = [data.get("to")] if isinstance(data.get("to"), str) else data.get("to")
    everyone = [one for given in (to, data.get("cc"), data.get("bcc")) if isinstance(given, list) for one in given]
    given = data.get("tags")
    named = [f"{name}:{value}" for name, value in given.items()] if isinstance(given, dict) else []
    listed = read_list(next(iter(headers(data, "x-tags")), None))
    return [
        EmailEvent(
            key="",  # the svix-id, which is the receipt's
            type=kind,
            message_id=message(data.get("email_id")),
            recipient=address(everyone[0]) if len(everyone) == 1 else None,
            occurred_at=when(payload.get("created_at"), data.get("created_at")),
            bounce=bounce,
            reason=why(at(data, "bounce.message"), at(data, "failed.reason"), at(data, "suppressed.message")),
            tags=tags(named, listed),
            metadata=metadata(next(iter(headers(data, "x-metadata")), None)),
            raw=payload,
        )
    ]


# -- SparkPost ------------------------------------------------------------------------------------------------------

SPARKPOST: Words = {
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
SPARKPOST_CLASS: Words = {
    "10": (T.BOUNCED, HARD),
    "30": (T.BOUNCED, HARD),
    "90": (T.UNSUBSCRIBED, None),
    "60": (T.AUTORESPONDED, None),
    "100": (T.AUTORESPONDED, None),
    "80": (T.SUBSCRIBED, None),
    **{str(number): (T.BOUNCED, SOFT) for number in (20, 21, 22, 23, 24, 40, 70)},
}
"""Bounce classes by SparkPost's table; blocks (25, 50–54) and the undetermined (1) say nothing of the address."""


_SPARKPOST_LISTED = "suppress"
"""Stands in the reason of a rejection where the recipient is on SparkPost's suppression list."""


def sparkpost(payload: dict[str, Any]) -> list[EmailEvent]:
    inner = payload.get("msys")
    inner = inner if isinstance(inner, dict) else {}
    found = [one for one in inner.values() if isinstance(one, dict)]
    if len(found) != 1 or "relay_message" in inner or not text(found[0].get("type")):
        return []  # a ping, or an inbound mail
    data = found[0]
    kind, bounce = SPARKPOST.get(str(data["type"]), (T.UNKNOWN, None))
    if kind is T.BOUNCED:
        kind, bounce = SPARKPOST_CLASS.get(str(data.get("bounce_class")), (kind, None))
    elif kind is T.REJECTED and _SPARKPOST_LISTED in f"{data.get('raw_reason')} {data.get('reason')}".lower():
        bounce = HARD
    recipient = address(data.get("raw_rcpt_to")) or address(data.get("rcpt_to"))
    return [
        EmailEvent(
            key=index_text(text(data.get("event_id"))) or "",
            type=kind,
            message_id=message(data.get("transmission_id")) or message(data.get("message_id")),
            recipient=recipient,
            occurred_at=when(data.get("timestamp")),
            bounce=bounce,
            reason=why(data.get("raw_reason"), data.get("reason")),
            tags=tags(data.get("campaign_id")),
            metadata=metadata(data.get("rcpt_meta")),
            raw=payload,
        )
    ]


# -- Mandrill -------------------------------------------------------------------------------------------------------

MANDRILL: Words = {
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
"""Reasons for which Mandrill rejects a message and that say nothing of its recipient, or nothing lasting."""


def mandrill(payload: dict[str, Any]) -> list[EmailEvent]:
    word = text(payload.get("event")) or text(payload.get("type"))
    if word in (None, "inbound"):
        return []
    kind, bounce = MANDRILL.get(word, (T.UNKNOWN, None))
    msg = payload.get("msg")
    msg = msg if isinstance(msg, dict) else {}
    rejected = text(at(payload, "reject.reason")) or text(at(msg, "reject.reason")) or text(msg.get("reject_reason"))
    if kind is T.REJECTED and rejected in MANDRILL_NOT_THE_ADDRESS:
        bounce = None
    sent = message(payload.get("_id")) or message(msg.get("_id"))
    recipient = address(msg.get("email")) or address(at(payload, "reject.email"))
    return [
        EmailEvent(
            key=compose(sent, word, payload.get("ts"), recipient, payload.get("url")),  # `_id` is the message's
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=when(payload.get("ts")),
            bounce=bounce,
            reason=why(
                msg.get("diag"),
                msg.get("bounce_description"),
                at(payload, "reject.detail"),
                rejected,
            ),
            tags=tags(msg.get("tags")),
            metadata=metadata(msg.get("metadata")),
            raw=payload,
        )
    ]


# -- Mailjet --------------------------------------------------------------------------------------------------------

MAILJET: Words = {
    "sent": (T.DELIVERED, None),  # "sent" is told once the recipient's server has taken it
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
"""Errors for which Mailjet blocks a message and that say nothing of its recipient, or nothing lasting."""


def mailjet(payload: dict[str, Any]) -> list[EmailEvent]:
    word = text(payload.get("event"))
    if word is None:
        return []
    kind, bounce = MAILJET.get(word, (T.UNKNOWN, None))
    is_hard = payload.get("hard_bounce") is True
    if payload.get("error") == "greylisted" and not is_hard:
        kind, bounce = T.DEFERRED, None  # "delivery will be re-attempted"
    elif kind is T.BOUNCED and is_hard:
        bounce = HARD
    elif kind is T.REJECTED and text(payload.get("error")) in MAILJET_NOT_THE_ADDRESS:
        bounce = None
    sent, recipient = message(payload.get("MessageID")), address(payload.get("email"))
    return [
        EmailEvent(
            key=compose(sent, word, payload.get("time"), recipient, payload.get("url")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=when(payload.get("time")),
            bounce=bounce,
            reason=why(payload.get("smtp_reply"), payload.get("comment"), payload.get("error")),
            tags=tags(payload.get("customcampaign")),
            metadata=metadata(payload.get("Payload")),
            raw=payload,
        )
    ]


# -- Brevo ----------------------------------------------------------------------------------------------------------

BREVO: Words = {
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
    "unsubscribed": (T.UNSUBSCRIBED, None),  # the word of Brevo's API; which of them its payloads have is not confirmed
    "list_addition": (T.SUBSCRIBED, None),
}


def brevo(payload: dict[str, Any]) -> list[EmailEvent]:
    """`id` is no event's, and of the times only `ts_epoch` is UTC whatever the account's time zone is."""
    word = text(payload.get("event"))
    if word is None or "items" in payload:
        return []
    kind, bounce = BREVO.get(word, (T.UNKNOWN, None))
    sent, recipient = message(payload.get("message-id")), address(payload.get("email"))
    time = payload.get("ts_epoch") or payload.get("ts_event") or payload.get("ts")
    return [
        EmailEvent(
            key=compose(sent, word, time, recipient, payload.get("link")),
            type=kind,
            message_id=sent,
            recipient=recipient,
            occurred_at=when(time),
            bounce=bounce,
            reason=why(payload.get("reason")),
            tags=tags(payload.get("tags") or payload.get("tag")),
            metadata=metadata(payload.get("X-Mailin-custom")),
            raw=payload,
        )
    ]
