"""The payloads of SendGrid, Amazon SES and Postmark, each with the email events that it must give.

A row is the payload of one receipt and its facts: type, bounce, recipient, message id and time.
"""

import json
from typing import Any

Row = tuple[Any, list[tuple[str, str | None, str | None, str | None, str]]]

JANE = "jane@example.com"


# -- SendGrid -------------------------------------------------------------------------------------------------------


def sendgrid(event: str, timestamp: int = 1763200000, **more: Any) -> dict[str, Any]:
    return {
        "email": JANE,
        "timestamp": timestamp,
        "smtp-id": "<QxOyqPXBTJCrtqDtuwUqBA@geopod-ismtpd-5>",
        "event": event,
        "category": ["receipt", "shop"],
        "sg_event_id": f"{event}-{timestamp}",
        "sg_message_id": "QxOyqPXBTJCrtqDtuwUqBA.recvd-6b4c7d9f8-xk2vl-1-64F0A1B2-1E.0",
        "order": "1042",
        **more,
    }


SG = "QxOyqPXBTJCrtqDtuwUqBA"
SG_AT = "2025-11-15T09:46:40.000000Z"


def _sg(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, JANE, SG, SG_AT)]


SENDGRID: list[Row] = [
    (sendgrid("processed"), _sg("queued")),
    (sendgrid("deferred", response="400 try again later", attempt="5"), _sg("deferred")),
    (sendgrid("delivered", response="250 OK", tls=1, ip="192.0.2.7"), _sg("delivered")),
    (sendgrid("bounce", reason="550 no such user", status="5.1.1", type="bounce"), _sg("bounced", "hard")),
    (sendgrid("bounce", reason="452 over quota", status="4.2.2", type="blocked"), _sg("bounced", "soft")),
    (sendgrid("bounce", reason="450 later", status="4.0.0"), _sg("bounced", "soft")),
    (sendgrid("dropped", reason="Bounced Address", status="5.0.0"), _sg("rejected", "hard")),
    (sendgrid("dropped", 1763200000, reason="Spam Reporting Address"), _sg("rejected", "hard")),
    (sendgrid("dropped", 1763200000, reason="Unsubscribed Address"), _sg("rejected", "hard")),
    (sendgrid("dropped", 1763200000, reason="Invalid"), _sg("rejected", "hard")),
    (sendgrid("dropped", 1763200000, reason="Spam Content"), _sg("rejected")),
    (sendgrid("dropped", 1763200000, reason="Recipient List over Package Quota"), _sg("rejected")),
    (sendgrid("open", useragent="Mozilla/5.0", ip="192.0.2.9", sg_machine_open=False), _sg("opened")),
    (sendgrid("click", url="https://example.com/1", useragent="Mozilla/5.0"), _sg("clicked")),
    (sendgrid("spamreport"), _sg("complained")),
    (sendgrid("unsubscribe"), _sg("unsubscribed")),
    (sendgrid("group_unsubscribe", asm_group_id=10), _sg("unsubscribed")),
    (sendgrid("group_resubscribe", asm_group_id=10), _sg("subscribed")),
    (sendgrid("account_status_change"), _sg("unknown")),
]


# -- Amazon SES over SNS --------------------------------------------------------------------------------------------

SES_ID = "0100019a-8f2c-4c1e-9d6b-6e5b4f0c7a11-000000"
SES_MAIL = {
    "timestamp": "2025-11-15T09:46:39.500Z",
    "source": "shop@example.org",
    "messageId": SES_ID,
    "destination": [JANE, "joe@example.net"],
    "headersTruncated": False,
    "headers": [{"name": "X-Tag", "value": "receipt"}, {"name": "X-Metadata", "value": '{"order": "1042"}'}],
    "tags": {"ses:configuration-set": ["shop"], "campaign": ["autumn"]},
}
SES_AT = "2025-11-15T09:46:40.123000Z"
_ses_time = "2025-11-15T09:46:40.123Z"


def sns(word: str, form: str = "eventType", number: int = 1, mail: Any = SES_MAIL, **facts: Any) -> dict[str, Any]:
    """An SNS notification with an SES event in it, as a text."""
    return {
        "Type": "Notification",
        "MessageId": f"22b80b92-fdea-4c2c-8f9d-bdfb0c7b{number:04d}",
        "TopicArn": "arn:aws:sns:eu-west-1:123456789012:ses",
        "Message": json.dumps({form: word, "mail": mail, **facts}),
        "Timestamp": "2025-11-15T09:46:41.000Z",
        "SignatureVersion": "1",
    }


def ses_bounce(form: str = "eventType", number: int = 1, kind: str = "Permanent", to: str = JANE) -> dict[str, Any]:
    recipient = {"emailAddress": to, "action": "failed", "status": "5.1.1", "diagnosticCode": "smtp; 550 5.1.1 unknown"}
    bounce = {
        "bounceType": kind,
        "bounceSubType": "General",
        "bouncedRecipients": [recipient],
        "timestamp": _ses_time,
        "feedbackId": "0100019a8f2c-fb",
    }
    return sns("Bounce", form, number, bounce=bounce)


def _both(type_: str, when: str = SES_AT) -> list[Any]:
    return [(type_, None, JANE, SES_ID, when), (type_, None, "joe@example.net", SES_ID, when)]


_SES_COMPLAINT = {
    "complainedRecipients": [{"emailAddress": JANE}],
    "timestamp": _ses_time,
    "feedbackId": "0100019a8f2c-cp",
    "complaintFeedbackType": "abuse",
}
_SES_NOT_SPAM = {**_SES_COMPLAINT, "complaintFeedbackType": "not-spam"}
_SES_DELAY = {"delayType": "MailboxFull", "timestamp": _ses_time, "delayedRecipients": [{"emailAddress": JANE}]}
_SES_LEFT = {"timestamp": _ses_time, "newTopicPreferences": {"unsubscribeAll": True}}
_SES_CLICK = {"timestamp": _ses_time, "link": "https://example.com/1"}
_ALONE = {**SES_MAIL, "destination": [JANE]}

SES: list[Row] = [
    (sns("Send", send={}), _both("sent", "2025-11-15T09:46:39.500000Z")),
    (
        sns("Delivery", delivery={"timestamp": _ses_time, "recipients": [JANE], "smtpResponse": "250 ok"}),
        [("delivered", None, JANE, SES_ID, SES_AT)],
    ),
    (ses_bounce("eventType"), [("bounced", "hard", JANE, SES_ID, SES_AT)]),
    (ses_bounce("notificationType"), [("bounced", "hard", JANE, SES_ID, SES_AT)]),
    (ses_bounce("notificationType", kind="Transient"), [("bounced", "soft", JANE, SES_ID, SES_AT)]),
    (ses_bounce("notificationType", kind="Undetermined"), [("bounced", None, JANE, SES_ID, SES_AT)]),
    (ses_bounce(to="Jane Doe <Jane@EXAMPLE.com>"), [("bounced", "hard", "Jane@example.com", SES_ID, SES_AT)]),
    (sns("Complaint", complaint=_SES_COMPLAINT), [("complained", None, JANE, SES_ID, SES_AT)]),
    (sns("Complaint", "notificationType", complaint=_SES_COMPLAINT), [("complained", None, JANE, SES_ID, SES_AT)]),
    (sns("Complaint", complaint=_SES_NOT_SPAM), [("unknown", None, JANE, SES_ID, SES_AT)]),
    (sns("Reject", reject={"reason": "Bad content"}), _both("rejected", "2025-11-15T09:46:39.500000Z")),
    (sns("Open", mail=_ALONE, open={"timestamp": _ses_time}), [("opened", None, JANE, SES_ID, SES_AT)]),
    (sns("Open", open={"timestamp": _ses_time, "userAgent": "Mozilla/5.0"}), [("opened", None, None, SES_ID, SES_AT)]),
    (sns("Click", mail=_ALONE, click=_SES_CLICK), [("clicked", None, JANE, SES_ID, SES_AT)]),
    (sns("Click", click=_SES_CLICK), [("clicked", None, None, SES_ID, SES_AT)]),
    (
        sns("Rendering Failure", failure={"templateName": "t", "errorMessage": "no such attribute"}),
        _both("failed", "2025-11-15T09:46:39.500000Z"),
    ),
    (sns("DeliveryDelay", deliveryDelay=_SES_DELAY), [("deferred", None, JANE, SES_ID, SES_AT)]),
    (sns("Subscription", mail=_ALONE, subscription=_SES_LEFT), [("unsubscribed", None, JANE, SES_ID, SES_AT)]),
    (sns("Subscription", subscription=_SES_LEFT), [("unsubscribed", None, None, SES_ID, SES_AT)]),
    (sns("Levitation", levitation={}), _both("unknown", "2025-11-15T09:46:39.500000Z")),
]


# -- Postmark -------------------------------------------------------------------------------------------------------

PM_ID = "883953f4-6105-42a2-a16a-77a8eac79483"
PM_AT = "2025-11-15T09:46:40.396393Z"
_pm_time = "2025-11-15T05:46:40.3963933-04:00"
_PM: dict[str, Any] = {"MessageID": PM_ID, "Tag": "receipt", "Metadata": {"order": "1042"}, "MessageStream": "outbound"}


def postmark_bounce(kind: str = "HardBounce", record: str = "Bounce", **more: Any) -> dict[str, Any]:
    own = {"RecordType": record, "ID": 901542550, "Type": kind, "Email": JANE, "BouncedAt": _pm_time}
    return {**_PM, **own, "Details": "smtp;550 5.1.1 unknown", "Inactive": True, **more}


def _pm(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, JANE, PM_ID, PM_AT)]


_PM_CHANGE = {
    **_PM,
    "RecordType": "SubscriptionChange",
    "Recipient": JANE,
    "ChangedAt": _pm_time,
    "Origin": "Recipient",
}

POSTMARK: list[Row] = [
    ({**_PM, "RecordType": "Delivery", "Recipient": JANE, "DeliveredAt": _pm_time, "Details": "ok"}, _pm("delivered")),
    (postmark_bounce(), _pm("bounced", "hard")),
    (postmark_bounce("SoftBounce"), _pm("bounced", "soft")),
    (postmark_bounce("Transient"), _pm("deferred")),
    (postmark_bounce("DnsError"), _pm("deferred")),
    (postmark_bounce("AutoResponder"), _pm("autoresponded")),
    (postmark_bounce("SpamNotification"), _pm("complained")),
    (postmark_bounce("BadEmailAddress"), _pm("rejected", "hard")),
    (postmark_bounce("ManuallyDeactivated"), _pm("rejected", "hard")),
    (postmark_bounce("Blocked"), _pm("rejected")),
    (postmark_bounce("VirusNotification"), _pm("bounced")),
    (postmark_bounce("SMTPApiError"), _pm("failed")),
    (postmark_bounce("Unknown"), _pm("unknown")),
    (postmark_bounce("Levitation"), _pm("bounced")),
    (postmark_bounce("SpamComplaint", "SpamComplaint"), _pm("complained")),
    ({**_PM, "RecordType": "Open", "Recipient": JANE, "ReceivedAt": _pm_time, "FirstOpen": True}, _pm("opened")),
    (
        {
            **_PM,
            "RecordType": "Click",
            "Recipient": JANE,
            "ReceivedAt": _pm_time,
            "OriginalLink": "https://example.com",
        },
        _pm("clicked"),
    ),
    ({**_PM_CHANGE, "SuppressSending": True, "SuppressionReason": "ManualSuppression"}, _pm("unsubscribed")),
    ({**_PM_CHANGE, "SuppressSending": True, "SuppressionReason": "HardBounce"}, _pm("bounced", "hard")),
    ({**_PM_CHANGE, "SuppressSending": False, "SuppressionReason": None}, _pm("subscribed")),
    ({**_PM, "RecordType": "Levitation", "Recipient": JANE, "ReceivedAt": _pm_time}, _pm("unknown")),
]
