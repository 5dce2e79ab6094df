"""The reader of Mailgun: its JSON, and the form posts of before 2018; see `events`."""

from typing import Any

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, address, compose, message
from oncehook.email.reading import Words, at, inner, metadata, tags, text, when, why

T = EmailType

MAILGUN: Words = {
    "accepted": (T.QUEUED, None),
    "delivered": (T.DELIVERED, None),
    "failed": (T.BOUNCED, HARD),
    "bounced": (T.BOUNCED, HARD),
    "rejected": (T.REJECTED, None),
    "dropped": (T.REJECTED, None),
    "opened": (T.OPENED, None),
    "clicked": (T.CLICKED, None),
    "unsubscribed": (T.UNSUBSCRIBED, None),
    "complained": (T.COMPLAINED, None),
}
MAILGUN_REASON: Words = {
    "suppress-bounce": (T.REJECTED, HARD),
    "suppress-complaint": (T.REJECTED, HARD),
    "suppress-unsubscribe": (T.REJECTED, HARD),
    "espblock": (T.BOUNCED, None),
    "generic": (T.BOUNCED, None),
    "old": (T.BOUNCED, SOFT),
}
"""Why a message failed for good: the address is on Mailgun's own list, the sender is blocked, retries ran out."""


def mailgun(payload: dict[str, Any]) -> list[EmailEvent]:
    data = payload.get("event-data")
    if not isinstance(data, dict):
        return _form(payload)
    word = text(data.get("event"))
    kind, bounce = MAILGUN.get(word or "", (T.UNKNOWN, None))
    if kind is T.BOUNCED and data.get("severity") == "temporary":
        kind, bounce = T.DEFERRED, None  # it goes on trying
    elif kind is T.BOUNCED:
        kind, bounce = MAILGUN_REASON.get(str(data.get("reason")), (kind, bounce))
    own, time = text(data.get("id")), data.get("timestamp")
    recipient = address(data.get("recipient")) or address(at(data, "message.headers.to"))
    status = data.get("delivery-status")
    return [
        EmailEvent(
            key=compose(own, time) if own else "",  # its id is unique only within a day
            type=kind,
            message_id=message(at(data, "message.headers.message-id")),
            recipient=recipient,
            occurred_at=when(time, at(payload, "signature.timestamp")),
            bounce=bounce,
            reason=why(at(status, "message"), at(status, "description"), at(data, "reject.reason"), data.get("reason")),
            tags=tags(data.get("tags")),
            metadata=metadata(data.get("user-variables")),
            raw=payload,
        )
    ]


# -- the forms of before 2018 ---------------------------------------------------------------------------------------
#
# Mailgun adds the sender's own variables to the same form. Where a variable has the name of one of Mailgun's fields,
# the form has that field twice: Mailgun's value comes first, except for `timestamp`, `token` and `signature`, where it
# is the last. The payload has a list for a repeated field.

_ON_A_LIST = {"605", "607"}
"""Mailgun's codes for an address that bounced or complained before."""

_FIELDS = """
attachment-count body-plain campaign-id campaign-name city client-name client-os client-type code country description
device-type domain error event h ip mailing-list message-headers message-id Message-Id notification reason
recipient region signature tag timestamp token url user-agent X-Mailgun-Sid X-Mailgun-Tag
"""
_OWN = frozenset(_FIELDS.split())
_SIGNED = {"timestamp", "token", "signature"}


def _form(payload: dict[str, Any]) -> list[EmailEvent]:
    word = text(_own(payload, "event"))
    if word is None:
        return []  # an inbound mail
    kind, bounce = MAILGUN.get(word, (T.UNKNOWN, None))
    reason = _own(payload, "reason")
    if kind is T.REJECTED and (reason == "hardfail" or text(_own(payload, "code")) in _ON_A_LIST):
        bounce = HARD
    reasons = (_own(payload, "error"), _own(payload, "notification"), _own(payload, "description"), reason)
    return [
        EmailEvent(
            key="",
            type=kind,
            message_id=message(_own(payload, "Message-Id")) or message(_own(payload, "message-id")),
            recipient=address(_own(payload, "recipient")),
            occurred_at=when(_own(payload, "timestamp")),
            bounce=bounce,
            reason=why(*reasons),
            tags=tags(payload.get("tag"), payload.get("X-Mailgun-Tag")),
            metadata=_variables(payload),
            raw=payload,
        )
    ]


def _own(payload: dict[str, Any], name: str) -> Any:
    """Mailgun's own value of a field that a variable of the sender may repeat."""
    value = payload.get(name)
    if not isinstance(value, list) or not value:
        return value
    return value[-1 if name in _SIGNED else 0]


def _variables(payload: dict[str, Any]) -> dict[str, Any]:
    """The sender's variables: from the message's headers where the form has them, else what is not Mailgun's own."""
    found = inner(payload.get("message-headers"))
    if isinstance(found, list):
        pairs = [one for one in found if isinstance(one, list) and len(one) == 2]
        values = [value for name, value in pairs if name == "X-Mailgun-Variables"]
        return {name: value for one in values for name, value in metadata(one).items()}
    given = {}
    for name, value in payload.items():
        if name not in _OWN:
            given[name] = value[-1] if isinstance(value, list) and value else value
        elif isinstance(value, list) and value and name not in ("tag", "X-Mailgun-Tag"):
            given[name] = value[0 if name in _SIGNED else -1]
    return metadata(given)
