"""The canonical form of PayPal: what it signs of a delivery, and which certificates may be fetched for that.

The body is covered by its CRC-32 alone, and the id of the webhook is not in the request: it is a setting of the source.
Live and sandbox have hosts of their own, and a source takes certificates from one of them only.
"""

import re
from zlib import crc32

from oncehook.providers.expressions import Headers

SIGNATURE, ALGORITHM, CERTIFICATE = b"paypal-transmission-sig", b"paypal-auth-algo", b"paypal-cert-url"
ID, TIME = b"paypal-transmission-id", b"paypal-transmission-time"
SIGNED = frozenset({SIGNATURE, ALGORITHM, CERTIFICATE, ID, TIME})
_NAME = r"/v1/notifications/certs/CERT-[A-Za-z0-9-]{1,100}"
_LIVE = re.compile(r"https://api\.paypal\.com" + _NAME, re.ASCII)
_SANDBOX = re.compile(r"https://api\.sandbox\.paypal\.com" + _NAME, re.ASCII)


def signed_message(headers: Headers, body: bytes, webhook_id: str) -> bytes | None:
    """What PayPal signs, or None if a part of it is missing or could be read as two."""
    transmission, time = headers.get(ID), headers.get(TIME)
    if not transmission or not time or b"|" in transmission + time:
        return None
    return b"%s|%s|%s|%d" % (transmission, time, webhook_id.encode(), crc32(body))


def certificate_url(headers: Headers, *, sandbox: bool) -> str | None:
    """The address of the signing certificate, if it is one of PayPal's own."""
    url = headers.get(CERTIFICATE, b"").decode("latin-1")
    return url if (_SANDBOX if sandbox else _LIVE).fullmatch(url) else None
