"""PayPal: the signed message, and the addresses of its certificates."""

import pytest

from oncehook.providers.families import paypal

PAYPAL_PATH = "/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270"


SANDBOX = "https://api.sandbox.paypal.com" + PAYPAL_PATH


LIVE = "https://api.paypal.com" + PAYPAL_PATH


HOSTILE = [
    LIVE.replace("https", "http"), LIVE + "?x=1", LIVE + "#x", LIVE + "/..", LIVE + "\n", " " + LIVE, LIVE + "%2e",
    LIVE.replace("api.paypal.com", "api.paypal.com:443"), LIVE.replace("api.paypal.com", "api.paypal.com@evil.example"),
    LIVE.replace("api.paypal.com", "evil.example"), LIVE.replace("api.paypal.com", "api.paypal.com.evil.example"),
    LIVE.replace("api.paypal.com", "evilpaypal.com"), LIVE.replace("api.paypal.com", "www.paypal.com"),
    LIVE.replace("api.paypal.com", "user:pw@api.paypal.com"), LIVE.replace("api.paypal.com", "api.paypal.com\\@evil"),
    LIVE.replace("api.paypal.com", "API.PAYPAL.COM"), LIVE.replace("api.paypal.com", "api.paypaI.com"),
    LIVE.replace("/v1/notifications/certs", "/v1/redirect"), LIVE.replace("CERT-", "OTHER-"), LIVE + "x" * 200, "", "x",
    LIVE.replace("/certs/", "/certs/../"), LIVE.replace("api.paypal.com", "api.paypal.com."),
    "//api.paypal.com" + PAYPAL_PATH,
]  # fmt: skip


@pytest.mark.parametrize("url", HOSTILE)
def test_certificate_address_of_another_host_is_rejected(url: str) -> None:
    for sandbox in (False, True):
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=sandbox) is None


def test_source_accepts_certificates_of_live_or_sandbox_but_not_both() -> None:
    for url, sandbox in ((LIVE, False), (SANDBOX, True)):
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=sandbox) == url
        assert paypal.certificate_url({paypal.CERTIFICATE: url.encode()}, sandbox=not sandbox) is None


def test_header_with_the_separator_gives_no_signed_message() -> None:
    headers = {paypal.ID: b"a", paypal.TIME: b"b"}
    assert paypal.signed_message(headers, b"", "w") == b"a|b|w|0"
    for odd in ({paypal.ID: b"a|b"}, {paypal.TIME: b"b|w"}, {paypal.ID: b""}, {paypal.TIME: b""}):
        assert paypal.signed_message({**headers, **odd}, b"", "w") is None
