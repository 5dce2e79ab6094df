"""The canonical form of Amazon SNS: which fields it signs, and which addresses in them may be followed.

The signature proves Amazon, so the address of the certificate is the whole of the trust: it must be SNS's own
host in a region that has the shape of one (`sns.s3-….amazonaws.com` is a bucket that anyone can own) and
the exact path that SNS uses. Nothing is fetched from any other address.
"""

import re
from collections.abc import Mapping
from typing import Any

_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
NAMES = (*dict.fromkeys(_NOTIFICATION + _CONFIRMATION), "Signature", "SignatureVersion", "SigningCertURL")
_HOST = r"https://sns\.[a-z]{2}(?:-[a-z]{2,12}){1,2}-[0-9]\.amazonaws\.com(?:\.cn)?"
_CERTIFICATE = re.compile(_HOST + r"/SimpleNotificationService-[0-9a-f]{32}\.pem", re.ASCII)
_SUBSCRIBE = re.compile(_HOST + r"/\?Action=ConfirmSubscription&[A-Za-z0-9=&:%._~-]{1,2048}", re.ASCII)


def signed_message(fields: Mapping[str, str]) -> bytes | None:
    """What SNS signs of these fields: `name\\nvalue\\n` in a fixed order, or None if one that must be there is not.

    Only a message may hold a line break: in any other field one would let the same signed bytes be read
    as different fields, by whoever can have a message of their own published.
    """
    names = _SIGNED.get(fields.get("Type", ""), ())
    lines = []
    for name in names:
        value = fields.get(name)
        if value is None and name == "Subject":
            continue
        if value is None or ("\n" in value and name != "Message"):
            return None
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode("utf-8", "surrogatepass") or None


def certificate_url(fields: Mapping[str, Any]) -> str | None:
    """The address of the signing certificate, if it is one of SNS's own."""
    url = fields.get("SigningCertURL")
    return url if isinstance(url, str) and _CERTIFICATE.fullmatch(url) else None


def subscribe_url(fields: Mapping[str, Any]) -> str | None:
    """The address that confirms a subscription, if it is one of SNS's own."""
    url = fields.get("SubscribeURL")
    return url if isinstance(url, str) and _SUBSCRIBE.fullmatch(url) else None
