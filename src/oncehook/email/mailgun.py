"""The reader of Mailgun: its JSON payloads, and the form posts from before 2018. See `readers.py`."""

from typing import Any

from oncehook.email.event import HARD, SOFT, EmailEvent, EmailType, compose_key, normalise_address, normalise_message_id
from oncehook.email.payload_values import (
    Vocabulary,
    as_text,
    first_text,
    first_time,
    parse_json_text,
    read_metadata,
    read_tags,
    value_at,
)

T = EmailType

MAILGUN: Vocabulary = {
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
MAILGUN_REASON: Vocabulary = {
    "suppress-bounce": (T.REJECTED, HARD),
    "suppress-complaint": (T.REJECTED, HARD),
    "suppress-unsubscribe": (T.REJECTED, HARD),
    "espblock": (T.BOUNCED, None),
    "generic": (T.BOUNCED, None),
    "old": (T.BOUNCED, SOFT),
}
"""Reasons of a permanent failure: Mailgun's suppression list, a blocked sender, or no retries left."""


def mailgun(payload: dict[str, Any]) -> list[EmailEvent]:
    data = payload.get("event-data")
    if not isinstance(data, dict):
        return _form(payload)
    event_name = as_text(data.get("event"))
    kind, bounce = MAILGUN.get(event_name or "", (T.UNKNOWN, None))
    if kind is T.BOUNCED and data.get("severity") == "temporary":
        kind, bounce = T.DEFERRED, None  # Mailgun retries
    elif kind is T.BOUNCED:
        kind, bounce = MAILGUN_REASON.get(str(data.get("reason")), (kind, bounce))
    own, time = as_text(data.get("id")), data.get("timestamp")
    recipient = normalise_address(data.get("recipient")) or normalise_address(value_at(data, "message.headers.to"))
    status = data.get("delivery-status")
    return [
        EmailEvent(
            key=compose_key(own, time) if own else "",  # the id is unique only within a day
            type=kind,
            message_id=normalise_message_id(value_at(data, "message.headers.message-id")),
            recipient=recipient,
            occurred_at=first_time(time, value_at(payload, "signature.timestamp")),
            bounce=bounce,
            reason=first_text(
                value_at(status, "message"),
                value_at(status, "description"),
                value_at(data, "reject.reason"),
                data.get("reason"),
            ),
            tags=read_tags(data.get("tags")),
            metadata=read_metadata(data.get("user-variables")),
            raw=payload,
        )
    ]


# -- forms from before 2018 -----------------------------------------------------------------------------------------
#
# Mailgun adds the sender's variables to the same form. If a variable has the name of a field of Mailgun, the form has
# that field twice. Mailgun's value comes first, except for `timestamp`, `token` and `signature`, where it comes last.
# The payload has a list for a repeated field.

_SUPPRESSED_CODES = {"605", "607"}
"""Mailgun's codes for an address that bounced or complained before."""

_FIELDS = """
attachment-count body-plain campaign-id campaign-name city client-name client-os client-type code country description
device-type domain error event h ip mailing-list message-headers message-id Message-Id notification reason
recipient region signature tag timestamp token url user-agent X-Mailgun-Sid X-Mailgun-Tag
"""
_MAILGUN_FIELDS = frozenset(_FIELDS.split())
_SIGNED = {"timestamp", "token", "signature"}


def _form(payload: dict[str, Any]) -> list[EmailEvent]:
    event_name = as_text(_mailgun_value(payload, "event"))
    if event_name is None:
        return []  # an inbound mail
    kind, bounce = MAILGUN.get(event_name, (T.UNKNOWN, None))
    reason = _mailgun_value(payload, "reason")
    if kind is T.REJECTED and (reason == "hardfail" or as_text(_mailgun_value(payload, "code")) in _SUPPRESSED_CODES):
        bounce = HARD
    reasons = (
        _mailgun_value(payload, "error"),
        _mailgun_value(payload, "notification"),
        _mailgun_value(payload, "description"),
        reason,
    )
    return [
        EmailEvent(
            key="",
            type=kind,
            message_id=normalise_message_id(_mailgun_value(payload, "Message-Id"))
            or normalise_message_id(_mailgun_value(payload, "message-id")),
            recipient=normalise_address(_mailgun_value(payload, "recipient")),
            occurred_at=first_time(_mailgun_value(payload, "timestamp")),
            bounce=bounce,
            reason=first_text(*reasons),
            tags=read_tags(payload.get("tag"), payload.get("X-Mailgun-Tag")),
            metadata=_variables(payload),
            raw=payload,
        )
    ]


def _mailgun_value(payload: dict[str, Any], name: str) -> Any:
    """Return Mailgun's value of a field that a variable of the sender may repeat."""
    value = payload.get(name)
    if not isinstance(value, list) or not value:
        return value
    return value[-1 if name in _SIGNED else 0]


def _variables(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the sender's variables: from the message headers, or else all fields that are not Mailgun's."""
    headers = parse_json_text(payload.get("message-headers"))
    if isinstance(headers, list):
        pairs = [pair for pair in headers if isinstance(pair, list) and len(pair) == 2]
        values = [value for name, value in pairs if name == "X-Mailgun-Variables"]
        return {name: item for value in values for name, item in read_metadata(value).items()}
    variables = {}
    for name, value in payload.items():
        if name not in _MAILGUN_FIELDS:
            variables[name] = value[-1] if isinstance(value, list) and value else value
        elif isinstance(value, list) and value and name not in ("tag", "X-Mailgun-Tag"):
            variables[name] = value[0 if name in _SIGNED else -1]
    return read_metadata(variables)
