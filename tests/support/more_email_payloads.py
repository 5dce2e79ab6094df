"""The payloads of Mailgun, Resend, SparkPost, Mandrill, Mailjet and Brevo. See `email_payloads`."""

from typing import Any

from tests.support.email_payloads import JANE, SG_AT, Row

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
