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
_HOST = r"https://sns\.[a-z]{2}(?:-[a-z]{2,12}){1,2}-[0-9]\.amazonaws\.com(?:\.cn)?"
_CERTIFICATE = re.compile(_HOST + r"/SimpleNotificationService-[0-9a-f]{32}\.pem", re.ASCII)
_SUBSCRIBE = re.compile(_HOST + r"/\?Action=ConfirmSubscription&[A-Za-z0-9=&:%._~-]{1,2048}", re.ASCII)


def signed_message(fields: Mapping[str, Any]) -> bytes | None:
    """What SNS signs of these fields: `name\\nvalue\\n` in a fixed order, or None if one that must be there is not."""
    names = _SIGNED.get(fields.get("Type", "") if isinstance(fields.get("Type"), str) else "")
    if names is None:
        return None
    lines = []
    for name in names:
        value = fields.get(name)
        if value is None and name == "Subject":
            continue
        if not isinstance(value, str):
            return None
        lines.append(f"{name}\n{value}\n")
    return "".join(lines).encode("utf-8", "surrogatepass")


def certificate_url(fields: Mapping[str, Any]) -> str | None:
    """The address of the signing certificate, if it is one of SNS's own."""
    url = fields.get("SigningCertURL")
    return url if isinstance(url, str) and _CERTIFICATE.fullmatch(url) else None


def subscribe_url(fields: Mapping[str, Any]) -> str | None:
    """The address that confirms a subscription, if it is one of SNS's own."""
    url = fields.get("SubscribeURL")
    return url if isinstance(url, str) and _SUBSCRIBE.fullmatch(url) else None
