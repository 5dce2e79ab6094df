"""Amazon SNS: addresses of certificates, topics, and the signed message."""

import json
from typing import Any

import pytest

from oncehook.config.configuration import read_source
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.providers.certificates import Certificates, Fetch
from oncehook.providers.families.sns import certificate_url, signed_message, subscribe_url
from oncehook.providers.handshake import HandshakeHost, HandshakeRequest, kind_of
from oncehook.providers.sign import sign
from oncehook.providers.source import Source
from tests.providers.test_certificates import serving
from tests.support.providers import CERTIFICATE_URL, NOW, TOPIC, body_of, changed, pem_of, put, sender

HASH = "0123456789abcdef" * 2
PEM = f"SimpleNotificationService-{HASH}.pem"
GOOD_HOSTS = ["us-east-1", "eu-west-1", "ap-southeast-2", "us-gov-west-1", "me-central-1", "cn-north-1"]

HOSTILE_ORIGINS = [
    "https://sns.s3-ap-southeast-2.amazonaws.com", "https://sns.s3.amazonaws.com",
    "https://sns.s3-website-us-east-1.amazonaws.com",
    "https://sns.s3.us-east-1.amazonaws.com", "https://s3.amazonaws.com/sns.us-east-1.amazonaws.com",
    "https://evil.s3.us-east-1.amazonaws.com",
    "https://sns-us-east-1.amazonaws.com", "https://xsns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com.evil.example",
    "https://sns.us-east-1.amazonaws.comevil.example", "https://sns.us-east-1.amazonaws.evil.example",
    "https://evil.example/sns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com@evil.example", "https://user@sns.us-east-1.amazonaws.com",
    "https://user:pw@sns.us-east-1.amazonaws.com",
    "https://evil.example#@sns.us-east-1.amazonaws.com", "https://evil.example\\@sns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com:443",
    "https://sns.us-east-1.amazonaws.com:8443", "https://sns.us-east-1.amazonaws.com:",
    "http://sns.us-east-1.amazonaws.com",
    "ftp://sns.us-east-1.amazonaws.com", "file://sns.us-east-1.amazonaws.com", "//sns.us-east-1.amazonaws.com",
    "sns.us-east-1.amazonaws.com",
    "HTTPS://sns.us-east-1.amazonaws.com", "https://SNS.us-east-1.amazonaws.com", "https://sns.US-EAST-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com.",
    "https://sns.us-east-1.amazonaws.com/..", "https://sns.us-east-1.amazonaws.com/redirect",
    "https://sns.us-east-1.amazonaws.com//evil.example",
    "https://sns..amazonaws.com", "https://sns.amazonaws.com", "https://sns.us_east_1.amazonaws.com",
    "https://sns.us-east-1.evil.amazonaws.com",
    "https://sns.us-east-１.amazonaws.com", "https://sns.us-east-1。amazonaws.com", "https://ѕns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com\n",
    "\nhttps://sns.us-east-1.amazonaws.com", "https://sns.us-\neast-1.amazonaws.com",
    " https://sns.us-east-1.amazonaws.com", "https:/sns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com%2eevil.example", "https://sns.us-east-1.amazonaws.com%00.evil.example",
    "https://169.254.169.254", "https://[::1]",
    "https://sns.elasticbeanstalk-us-1.amazonaws.com", "https://sns.us-east-1.amazonaws.com.cn.evil.example",
    "https://sns.us-east-1.api.aws",
    "https://sns.lambda-url.us-east-1.amazonaws.com", "https://sns.us-east-11.amazonaws.com",
    "https://sns.u-east-1.amazonaws.com",
]  # fmt: skip
HOSTILE_PATHS = [
    f"/{PEM}?", f"/{PEM}?x=.pem", f"/{PEM}#", f"/{PEM}#x", f"/{PEM}/", f"/{PEM};x", f"//{PEM}", f"/x/{PEM}",
    f"/../{PEM}", f"/%2e/{PEM}", f"/{PEM}\n",
    f"/{PEM}\r\nHost: evil.example", f"/{PEM}%0a", f"/{PEM.upper()}", f"/{PEM.removesuffix('.pem')}", f"/{PEM}.pem",
    "/x.pem", "/", "",
    f"/SimpleNotificationService-{HASH[:-1]}.pem", f"/SimpleNotificationService-{HASH}0.pem",
    f"/SimpleNotificationService-{HASH.upper()}.pem",
    f"/SimpleNotificationService-{'g' * 32}.pem", f"/SimpleNotificationService-{'١' * 32}.pem", f"/evil.pem?/{PEM}",
    f"/?Action=x&{PEM}",
]  # fmt: skip
CONFIRM = "/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:eu-west-1:1:t&Token=2336412f37f"
HOSTILE_QUERIES = [
    "/?Action=Publish&TopicArn=x", "/?action=ConfirmSubscription&Token=x", "/?Action=ConfirmSubscription",
    "/?Action=ConfirmSubscription&",
    "/x?Action=ConfirmSubscription&Token=x", f"{CONFIRM}#x", f"{CONFIRM}\n", f"{CONFIRM} ", f"{CONFIRM}\r\nHost: evil",
    f"{CONFIRM}@evil.example",
    f"{CONFIRM}\\", f"{CONFIRM}/../x", f"{CONFIRM}?", f"{CONFIRM}ü", f"{CONFIRM}\x00", f"/{CONFIRM}",
    f"{CONFIRM}{'x' * 3000}", f"/{PEM}", "", "/",
]  # fmt: skip


@pytest.mark.parametrize("region", GOOD_HOSTS)
def test_address_of_sns_is_accepted_in_every_region(region: str) -> None:
    suffix = ".cn" if region.startswith("cn-") else ""
    origin = f"https://sns.{region}.amazonaws.com{suffix}"
    assert certificate_url({"SigningCertURL": f"{origin}/{PEM}"}) == f"{origin}/{PEM}"
    assert subscribe_url({"SubscribeURL": origin + CONFIRM}) == origin + CONFIRM


@pytest.mark.parametrize("origin", HOSTILE_ORIGINS)
def test_address_of_another_host_is_rejected(origin: str) -> None:
    assert certificate_url({"SigningCertURL": f"{origin}/{PEM}"}) is None
    assert subscribe_url({"SubscribeURL": f"{origin}{CONFIRM}"}) is None


def test_list_of_hostile_addresses_is_long_enough() -> None:
    assert len(set(HOSTILE_ORIGINS)) >= 40


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_address_of_another_file_is_rejected(path: str) -> None:
    assert certificate_url({"SigningCertURL": f"https://sns.eu-west-1.amazonaws.com{path}"}) is None


@pytest.mark.parametrize("query", HOSTILE_QUERIES)
def test_address_of_another_action_is_rejected(query: str) -> None:
    assert subscribe_url({"SubscribeURL": f"https://sns.eu-west-1.amazonaws.com{query}"}) is None


@pytest.mark.parametrize("value", [None, 1, [], {}, True, ["https://sns.eu-west-1.amazonaws.com/" + PEM]])
def test_address_that_is_not_a_string_is_none(value: Any) -> None:
    assert certificate_url({"SigningCertURL": value}) is None
    assert subscribe_url({"SubscribeURL": value}) is None
    assert certificate_url({}) is subscribe_url({}) is None


# -- the signed message ---------------------------------------------------------------------------------------------

FIELDS = {
    "Type": "Notification",
    "Message": "m",
    "MessageId": "i",
    "TopicArn": TOPIC,
    "Timestamp": "2027-01-15T08:00:00.000Z",
}


def test_fields_are_signed_in_the_order_of_sns() -> None:
    end = f"Timestamp\n2027-01-15T08:00:00.000Z\nTopicArn\n{TOPIC}\nType\nNotification\n"
    assert signed_message(FIELDS) == f"Message\nm\nMessageId\ni\n{end}".encode()
    assert signed_message({**FIELDS, "Subject": "s"}) == f"Message\nm\nMessageId\ni\nSubject\ns\n{end}".encode()
    confirmation = {
        **FIELDS,
        "Type": "SubscriptionConfirmation",
        "SubscribeURL": "u",
        "Token": "t",
        "Subject": "not signed",
    }
    assert (
        signed_message(confirmation)
        == (
            f"Message\nm\nMessageId\ni\nSubscribeURL\nu\nTimestamp\n2027-01-15T08:00:00.000Z\nToken\nt\nTopicArn\n{TOPIC}\n"
            "Type\nSubscriptionConfirmation\n"
        ).encode()
    )


@pytest.mark.parametrize("name", ["Type", "Message", "MessageId", "TopicArn", "Timestamp"])
def test_message_without_a_signed_field_is_none(name: str) -> None:
    assert signed_message({key: value for key, value in FIELDS.items() if key != name}) is None
    assert signed_message({**FIELDS, "Type": "Other"}) is None


def test_signed_bytes_cannot_be_read_as_other_fields() -> None:
    """Otherwise anyone who can publish a message could choose the id under which it is accepted again."""
    genuine = {**FIELDS, "Message": "bounce\nMessageId\nchosen\nSubject\nx"}
    shifted = {**FIELDS, "Message": "bounce", "MessageId": "chosen", "Subject": "x\nMessageId\ni"}
    assert "\n".join(
        ["Message", "bounce", "MessageId", "chosen", "Subject", "x", "MessageId", "i"]
    ).encode() in signed_message(genuine)  # type: ignore[operator]
    assert signed_message(shifted) is None
    for name in ("MessageId", "Subject", "TopicArn", "Timestamp"):
        assert signed_message({**FIELDS, name: "a\nb"}) is None


# -- verification ---------------------------------------------------------------------------------------------------

SES = sender("ses")


def fetching(*topics: str) -> Source:
    """A source whose fetch returns the certificate."""
    return Source(
        "ses",
        read_source("ses", {"topics": list(topics or [TOPIC])}),
        max_body=2**20,
        certificates=Certificates(fetch=serving(pem_of())),
    )


def message(**changes: Any) -> Delivery:
    fields = {**json.loads(SES.compose().body), "SigningCertURL": CERTIFICATE_URL, **changes}
    _, body = sign(SES.provider, json.dumps(fields).encode(), SES.pair().signing, now=NOW)
    return Delivery.of(body, {"Content-Type": "text/plain; charset=UTF-8"})


async def verify(source: Source, delivery: Delivery, now: float = NOW) -> int:
    assert source.verifier is not None
    wanted = source.verifier.key_to_fetch(delivery)
    if wanted:
        await source.certificates.ensure(wanted)
    return source.verifier.verify(delivery, now)


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["1", "2"])
async def test_both_signature_versions_verify_with_the_certificate_of_the_message(version: str) -> None:
    delivery = message(SignatureVersion=version)
    assert await verify(fetching(), delivery) == 0
    for other in ({"1": "2", "2": "1"}[version], "3", "", "01", "2 "):
        with pytest.raises(Rejected):
            await verify(fetching(), changed(delivery, body=put(delivery.body, "SignatureVersion", other)))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "topic", [TOPIC + "x", TOPIC[:-1], "arn:aws:sns:eu-west-1:999999999999:example", "", "x\n" + TOPIC]
)
async def test_message_of_an_unlisted_topic_is_rejected_without_a_fetch(topic: str) -> None:
    source = fetching()
    assert source.verifier is not None
    delivery = message()
    foreign = changed(delivery, body=put(delivery.body, "TopicArn", topic))
    if "\n" not in topic and topic:
        foreign = message(TopicArn=topic)  # authentic in every way, only not ours
    with pytest.raises(Rejected) as caught:
        source.verifier.key_to_fetch(foreign)
    assert caught.value.reason == "bad_signature"
    with pytest.raises(Rejected):
        source.verifier.verify(foreign, NOW)


@pytest.mark.anyio
async def test_topics_may_be_patterns() -> None:
    assert await verify(fetching("arn:aws:sns:*:123456789012:ex*"), message()) == 0


@pytest.mark.anyio
async def test_certificate_verifies_only_messages_within_its_validity() -> None:
    early = message(Timestamp="2026-11-01T00:00:00.000Z")
    with pytest.raises(Rejected) as caught:
        await verify(fetching(), early, now=1793491200.0)
    assert caught.value.reason == "bad_signature"


@pytest.mark.anyio
async def test_message_signed_with_another_key_does_not_verify() -> None:
    fields = {**json.loads(SES.compose().body), "SigningCertURL": CERTIFICATE_URL}
    _, forged = sign(SES.provider, json.dumps(fields).encode(), SES.pair(1).signing, now=NOW)
    with pytest.raises(Rejected):
        await verify(fetching(), Delivery.of(forged))


@pytest.mark.parametrize("origin", [HOSTILE_ORIGINS[0], HOSTILE_ORIGINS[20]])
def test_message_that_names_a_forged_certificate_is_rejected_without_a_fetch(origin: str) -> None:
    source = fetching()
    assert source.verifier is not None
    forged = message(SigningCertURL=f"{origin}/{PEM}")
    assert source.verifier.key_to_fetch(forged) is None
    with pytest.raises(Rejected):
        source.verifier.verify(forged, NOW)


@pytest.mark.parametrize("value", [None, 1, [], {}])
@pytest.mark.parametrize(
    "name", ["Signature", "SignatureVersion", "Type", "Message", "Subject", "TopicArn", "Timestamp"]
)
def test_field_that_is_not_a_string_is_rejected_without_a_fetch(name: str, value: Any) -> None:
    source = fetching()
    assert source.verifier is not None
    delivery = message(Subject="s")
    odd = changed(delivery, body=put(delivery.body, name, value))
    with pytest.raises(Rejected):
        assert source.verifier.key_to_fetch(odd) is None or value is None
        source.verifier.verify(odd, NOW)


# -- the sender's side ----------------------------------------------------------------------------------------------


def test_body_without_a_signed_field_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="the body lacks a field that SNS signs"):
        sign(sender("ses").provider, b'{"Type":"Notification"}', sender("ses").pair().signing, now=NOW)


def test_sender_and_source_do_not_share_a_secret() -> None:
    family, signature = sender("ses").signature.family, sender("ses").signature
    pair = family.make_pair(signature)
    assert not family.shares_secret(signature) and pair.signing != pair.verifying


# -- confirming a subscription --------------------------------------------------------------------------------------

CONFIRM_URL = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=abc"


def confirmation(url: object, fetch: Fetch) -> HandshakeRequest:
    delivery = Delivery.of(json.dumps({"SubscribeURL": url}).encode())
    return HandshakeRequest(
        sender("ses").provider.handshakes[0], delivery, body_of(delivery), HandshakeHost(Certificates(fetch))
    )


@pytest.mark.anyio
async def test_subscription_is_confirmed_at_the_address_of_sns() -> None:
    visited = []

    async def fetch(url: str) -> bytes:
        visited.append(url)
        return b""

    kind = kind_of("sns")
    assert (await kind.answer(confirmation(CONFIRM_URL, fetch)))[:2] == (200, b"confirmed")
    for url in ("https://evil.example/?Action=ConfirmSubscription&x=1", None, 7):
        with pytest.raises(Rejected, match="SubscribeURL is not an address of SNS"):
            await kind.answer(confirmation(url, fetch))
    assert visited == [CONFIRM_URL]


@pytest.mark.anyio
async def test_subscription_that_cannot_be_confirmed_is_unavailable() -> None:
    async def fetch(url: str) -> bytes:
        raise OSError("the host answered 500")

    with pytest.raises(Unavailable, match="the subscription could not be confirmed: the host answered 500"):
        await kind_of("sns").answer(confirmation(CONFIRM_URL, fetch))
