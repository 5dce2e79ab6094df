"""PayPal: the signed message, and the addresses of its certificates."""

import pytest

from oncehook.providers.certificates import Certificates
from oncehook.providers.families import paypal
from oncehook.providers.family import CheckContext
from oncehook.providers.sign import sign
from tests.support.providers import NOW, body_of, changed, pem_of, sender

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


def fetched(number: int = 0) -> Certificates:
    """A cache whose fetch returns a certificate of the test."""

    async def fetch(url: str) -> bytes:
        return pem_of(number)

    return Certificates(fetch=fetch)


def make_check(certificates: Certificates) -> paypal.PayPalCheck:
    return paypal.PayPalCheck((), CheckContext(sender("paypal").settings(), certificates))


@pytest.mark.anyio
async def test_fetched_certificate_verifies_deliveries_within_its_validity_only() -> None:
    certificates = fetched()
    await certificates.ensure(paypal.EXAMPLE_CERTIFICATE)
    for now, is_valid in ((NOW, True), (NOW - 90 * 86400, False), (NOW + 90 * 86400, False)):
        delivery = sender("paypal").compose(now=now)
        assert (make_check(certificates).matches(delivery, body_of(delivery)) is not None) is is_valid


@pytest.mark.anyio
async def test_delivery_without_a_valid_time_does_not_verify() -> None:
    certificates = fetched()
    await certificates.ensure(paypal.EXAMPLE_CERTIFICATE)
    delivery = sender("paypal").compose()
    forged = changed(delivery, {**delivery.headers, paypal.TIME: b"yesterday"})
    assert make_check(certificates).matches(forged, body_of(forged)) is None


def test_delivery_without_a_transmission_id_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="PAYPAL-TRANSMISSION-ID is missing"):
        sign(sender("paypal").provider, b"{}", sender("paypal").pair().signing, now=NOW)


def test_sender_and_source_do_not_share_a_secret() -> None:
    family, signature = sender("paypal").signature.family, sender("paypal").signature
    pair = family.make_pair(signature)
    assert not family.shares_secret(signature) and pair.signing != pair.verifying
    assert family.signed_headers(signature) == paypal.SIGNED
