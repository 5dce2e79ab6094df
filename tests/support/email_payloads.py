"""The payloads of each provider in the documented shape, each with the email event that it must become.

Each row: the payload of one receipt, then the facts (type, bounce, recipient, message id, occurred-at) in their order.
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


# -- Mailgun --------------------------------------------------------------------------------------------------------

MG_ID = "20251115094640.1.DF5966851B4BAA99@mg.example.org"
MG_AT = "2025-11-15T09:46:40.153125Z"


def mailgun(event: str, **more: Any) -> dict[str, Any]:
    return {
        "signature": {"timestamp": "1763200001", "token": f"{event}-token", "signature": "…"},
        "event-data": {
            "id": f"id-{event}",
            "event": event,
            "timestamp": 1763200000.153125,
            "recipient": JANE,
            "tags": ["receipt"],
            "user-variables": {"order": "1042"},
            "message": {"headers": {"message-id": MG_ID, "to": f"Jane <{JANE}>"}},
            **more,
        },
    }


def _mg(type_: str, bounce: str | None = None, when: str = MG_AT) -> list[Any]:
    return [(type_, bounce, JANE, MG_ID, when)]


_REFUSED = {"code": 550, "message": "5.1.1 no such user", "description": ""}

MAILGUN: list[Row] = [
    (mailgun("accepted"), _mg("queued")),
    (mailgun("delivered", **{"delivery-status": {"code": 250, "message": "OK"}}), _mg("delivered")),
    (mailgun("failed", severity="permanent", reason="bounce", **{"delivery-status": _REFUSED}), _mg("bounced", "hard")),
    (mailgun("failed", severity="temporary", reason="generic"), _mg("deferred")),
    (mailgun("failed", severity="permanent", reason="suppress-bounce"), _mg("rejected", "hard")),
    (mailgun("failed", severity="permanent", reason="suppress-complaint"), _mg("rejected", "hard")),
    (mailgun("failed", severity="permanent", reason="suppress-unsubscribe"), _mg("rejected", "hard")),
    (mailgun("failed", severity="permanent", reason="espblock"), _mg("bounced")),
    (mailgun("failed", severity="permanent", reason="generic"), _mg("bounced")),
    (mailgun("failed", severity="permanent", reason="old"), _mg("bounced", "soft")),
    (mailgun("rejected", recipient=None, reject={"reason": "virus"}), _mg("rejected")),
    (mailgun("opened", **{"client-info": {"user-agent": "Mozilla/5.0"}}), _mg("opened")),
    (mailgun("clicked", url="https://example.com/1"), _mg("clicked")),
    (mailgun("unsubscribed"), _mg("unsubscribed")),
    (mailgun("complained"), _mg("complained")),
    (mailgun("levitated"), _mg("unknown")),
]

MAILGUN_FORMS: list[Row] = [
    (
        {
            "event": word,
            "recipient": JANE,
            "timestamp": "1763200000",
            "token": word,
            "Message-Id": f"<{MG_ID}>",
            **more,
        },
        _mg(type_, bounce, SG_AT),
    )
    for word, type_, bounce, more in (
        ("delivered", "delivered", None, {}),
        ("bounced", "bounced", "hard", {"code": "550", "error": "no such user"}),
        ("dropped", "rejected", "hard", {"code": "605", "description": "not delivering to previously bounced address"}),
        ("dropped", "rejected", "hard", {"reason": "hardfail"}),
        ("dropped", "rejected", None, {"reason": "espblock"}),
        ("complained", "complained", None, {}),
        ("opened", "opened", None, {"user-agent": "Mozilla/5.0"}),
    )
]


# -- Resend ---------------------------------------------------------------------------------------------------------

RS_ID = "56761188-7520-42d8-8898-ff6fc54ce618"
RS_AT = "2025-11-15T09:46:40.126000Z"


def resend(word: str, to: Any = (JANE,), **more: Any) -> dict[str, Any]:
    data = {
        "email_id": RS_ID,
        "from": "Shop <shop@example.org>",
        "to": list(to),
        "created_at": "2025-11-15T09:46:39.9Z",
    }
    return {"type": word, "created_at": "2025-11-15T09:46:40.126Z", "data": {**data, "subject": "Hello", **more}}


def _rs(type_: str, bounce: str | None = None, to: str | None = JANE) -> list[Any]:
    return [(type_, bounce, to, RS_ID, RS_AT)]


_RS_BOUNCE = {"bounce": {"message": "The recipient's server sent a hard bounce message.", "type": "Permanent"}}

RESEND: list[Row] = [
    (resend("email.sent"), _rs("sent")),
    (resend("email.delivered", tags={"category": "receipt"}), _rs("delivered")),
    (resend("email.delivery_delayed"), _rs("deferred")),
    (resend("email.bounced", **_RS_BOUNCE), _rs("bounced", "hard")),
    (resend("email.bounced", bounce={"message": "full", "type": "Transient"}), _rs("bounced", "soft")),
    (resend("email.bounced", bounce={"message": "who knows"}), _rs("bounced")),
    (resend("email.bounced", (JANE, "joe@example.net"), **_RS_BOUNCE), _rs("bounced", "hard", None)),
    (resend("email.complained"), _rs("complained")),
    (resend("email.opened"), _rs("opened")),
    (resend("email.clicked", click={"link": "https://example.com/1", "userAgent": "Mozilla/5.0"}), _rs("clicked")),
    (resend("email.failed", failed={"reason": "reached_daily_quota"}), _rs("failed")),
    (resend("email.suppressed"), _rs("rejected", "hard")),
    (resend("email.bounced", bounce={"message": "The mailbox sent a hard bounce."}), _rs("bounced", "hard")),
    (resend("email.levitated"), _rs("unknown")),
]


# -- SparkPost ------------------------------------------------------------------------------------------------------

SP_ID = "65832150921904138"


def sparkpost(word: str, group: str = "message_event", **more: Any) -> dict[str, Any]:
    data = {
        "type": word,
        "event_id": f"92356927693813856-{word}",
        "message_id": "000443ee14578172be22",
        "transmission_id": SP_ID,
        "rcpt_to": JANE,
        "raw_rcpt_to": "Jane@Example.com",
        "timestamp": "1763200000",
        "campaign_id": "receipt",
        "rcpt_meta": {"order": "1042"},
        **more,
    }
    return {"msys": {group: data}}


def _sp(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, "Jane@example.com", SP_ID, SG_AT)]


SPARKPOST: list[Row] = [
    (sparkpost("injection"), _sp("queued")),
    (sparkpost("delivery"), _sp("delivered")),
    (sparkpost("delay", bounce_class="21", raw_reason="454 later"), _sp("deferred")),
    (sparkpost("bounce", bounce_class="10", raw_reason="550 unknown"), _sp("bounced", "hard")),
    (sparkpost("bounce", bounce_class="22", raw_reason="552 full"), _sp("bounced", "soft")),
    (sparkpost("bounce", bounce_class="51", raw_reason="554 spam"), _sp("bounced")),
    (sparkpost("bounce", bounce_class="90"), _sp("unsubscribed")),
    (sparkpost("out_of_band", bounce_class="60"), _sp("autoresponded")),
    (sparkpost("out_of_band", bounce_class="30"), _sp("bounced", "hard")),
    (sparkpost("spam_complaint", fbtype="abuse"), _sp("complained")),
    (sparkpost("policy_rejection", bounce_class="25"), _sp("rejected")),
    (sparkpost("policy_rejection", reason="554 recipient address suppressed"), _sp("rejected", "hard")),
    (sparkpost("generation_failure", "gen_event"), _sp("failed")),
    (sparkpost("generation_rejection", "gen_event"), _sp("rejected")),
    (sparkpost("open", "track_event"), _sp("opened")),
    (sparkpost("click", "track_event", target_link_url="https://example.com/1"), _sp("clicked")),
    (sparkpost("list_unsubscribe", "unsubscribe_event"), _sp("unsubscribed")),
    (sparkpost("link_unsubscribe", "unsubscribe_event"), _sp("unsubscribed")),
    (sparkpost("levitation"), _sp("unknown")),
]


# -- Mandrill -------------------------------------------------------------------------------------------------------

MD_ID = "abcdef0123456789abcdef0123456789"


def mandrill(word: str, **more: Any) -> dict[str, Any]:
    msg = {"_id": MD_ID, "ts": 1763199990, "email": JANE, "tags": ["receipt"], "metadata": {"order": "1042"}}
    return {"event": word, "_id": MD_ID, "ts": 1763200000, "msg": {**msg, **more}}


def _md(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, JANE, MD_ID, SG_AT)]


MANDRILL: list[Row] = [
    (mandrill("send"), _md("sent")),
    (mandrill("deferral", diag="451 later"), _md("deferred")),
    (mandrill("hard_bounce", diag="550 unknown", bounce_description="bad_mailbox"), _md("bounced", "hard")),
    (mandrill("soft_bounce", bounce_description="mailbox_full"), _md("bounced", "soft")),
    (mandrill("open"), _md("opened")),
    ({**mandrill("click"), "url": "https://example.com/1"}, _md("clicked")),
    (mandrill("spam"), _md("complained")),
    (mandrill("unsub"), _md("unsubscribed")),
    (mandrill("reject"), _md("rejected", "hard")),
    (mandrill("reject", reject={"reason": "spam"}), _md("rejected", "hard")),
    (mandrill("reject", reject={"reason": "rule"}), _md("rejected")),
    (mandrill("levitate"), _md("unknown")),
    (
        {"type": "blacklist", "action": "add", "ts": 1763200000, "reject": {"email": JANE, "reason": "hard-bounce"}},
        [("unknown", None, JANE, None, SG_AT)],
    ),
]


# -- Mailjet --------------------------------------------------------------------------------------------------------

MJ_ID = "19421777835146490"


def mailjet(word: str, **more: Any) -> dict[str, Any]:
    own = {"event": word, "time": 1763200000, "MessageID": int(MJ_ID), "email": JANE, "customcampaign": "receipt"}
    return {**own, "Payload": '{"order": "1042"}', **more}


def _mj(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, JANE, MJ_ID, SG_AT)]


MAILJET: list[Row] = [
    (mailjet("sent", smtp_reply="250 OK"), _mj("delivered")),
    (mailjet("bounce", hard_bounce=True, blocked=False, error="user unknown"), _mj("bounced", "hard")),
    (mailjet("bounce", hard_bounce=False, blocked=False, error="quota exceeded"), _mj("bounced", "soft")),
    (mailjet("bounce", hard_bounce=False, error="greylisted"), _mj("deferred")),
    (mailjet("blocked", error="preblocked", error_related_to="mailjet"), _mj("rejected", "hard")),
    (mailjet("blocked", error="spam reporter"), _mj("rejected", "hard")),
    (mailjet("blocked", error="content blocked", error_related_to="content"), _mj("rejected")),
    (mailjet("blocked", error="quota exceeded", error_related_to="recipient"), _mj("rejected")),
    (mailjet("open", agent="Mozilla/5.0"), _mj("opened")),
    (mailjet("click", url="https://example.com/1"), _mj("clicked")),
    (mailjet("spam", source="JMRPP"), _mj("complained")),
    (mailjet("unsub", mj_list_id=1), _mj("unsubscribed")),
    (mailjet("levitate"), _mj("unknown")),
]


# -- Brevo ----------------------------------------------------------------------------------------------------------

BV_ID = "202511150946.27287306012@smtp-relay.mailin.fr"
BV_AT = "2025-11-15T09:46:40.250000Z"


def brevo(word: str, **more: Any) -> dict[str, Any]:
    times = {"date": "2025-11-15 10:46:40", "ts": 1763203600, "ts_event": 1763203600, "ts_epoch": 1763200000250}
    own = {"event": word, "email": JANE, "id": 9999999, "message-id": f"<{BV_ID}>", "tags": ["receipt"]}
    return {**own, **times, "X-Mailin-custom": '{"order": "1042"}', **more}


def _bv(type_: str, bounce: str | None = None) -> list[Any]:
    return [(type_, bounce, JANE, BV_ID, BV_AT)]


BREVO: list[Row] = [
    (brevo("request"), _bv("queued")),
    (brevo("deferred", reason="421 later"), _bv("deferred")),
    (brevo("delivered"), _bv("delivered")),
    (brevo("hard_bounce", reason="550 unknown"), _bv("bounced", "hard")),
    (brevo("soft_bounce", reason="452 full"), _bv("bounced", "soft")),
    (brevo("invalid_email"), _bv("bounced", "hard")),
    (brevo("blocked", reason="blocked : due to blacklist user"), _bv("rejected", "hard")),
    (brevo("error", reason="template"), _bv("failed")),
    (brevo("spam"), _bv("complained")),
    (brevo("complaint"), _bv("complained")),
    (brevo("unique_opened"), _bv("opened")),
    (brevo("opened"), _bv("opened")),
    (brevo("unique_proxy_open"), _bv("opened")),
    (brevo("proxy_open"), _bv("opened")),
    (brevo("click", link="https://example.com/1"), _bv("clicked")),
    (brevo("unsubscribe"), _bv("unsubscribed")),
    (brevo("unsubscribed"), _bv("unsubscribed")),
    (brevo("levitated"), _bv("unknown")),
]

PAYLOADS: dict[str, list[Row]] = {
    "sendgrid": SENDGRID,
    "ses": SES,
    "postmark": POSTMARK,
    "mailgun": [*MAILGUN, *MAILGUN_FORMS],
    "resend": RESEND,
    "sparkpost": SPARKPOST,
    "mandrill": MANDRILL,
    "mailjet": MAILJET,
    "brevo": BREVO,
}
