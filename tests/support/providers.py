"""Every built-in provider with keys to sign and to verify, and with signed deliveries.

A new provider needs no change here: its keys follow from its definition.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from oncehook.config.configuration import read_source
from oncehook.config.settings import SourceSettings
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import families
from oncehook.providers.certificates import Certificates
from oncehook.providers.definition import Provider, Signature, built_in, built_in_names, read_provider
from oncehook.providers.sample import compose
from oncehook.providers.sign import sign
from oncehook.providers.signatures import algorithm, encode
from oncehook.providers.source import Source
from oncehook.providers.template import Body, Template
from oncehook.providers.verify import Verifier
from oncehook.testing import Pair, make_pair

NOW = 1_800_000_000.0
SECRET = "a secret of the test"
OPTIONS: dict[str, Any] = {"verify_token": "a token of the test"}
for family in map(families.find, families.built_in_names()):
    OPTIONS |= family.options
PUBLIC_URL = str(OPTIONS["public_url"])
TOPIC = str(OPTIONS["topics"][0])
CERTIFICATE_URL = f"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{'0123456789abcdef' * 2}.pem"


@cache
def pair(algorithm_name: str, form: Any, number: int) -> Pair:
    """The `number`th key pair of a kind. Each call returns the same one."""
    if algorithm_name == "sns":
        return Pair(_pem(rsa_key(number)), pem_of(number).decode())
    if algorithm_name == "paypal":  # its key is that of the certificate, too
        return Pair(_pem(rsa_key(number)), base64.b64encode(_public(rsa_key(number))).decode())
    if algorithm_name == "rsa-sha1":  # which no definition may name
        return make_pair(Signature(algorithm="rsa-sha256", key=form))
    return make_pair(Signature(algorithm=algorithm_name, key=form))


@cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def certificate(number: int = 0) -> x509.Certificate:
    """A certificate like those of SNS, valid around NOW."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.fromtimestamp(NOW, UTC)
    builder = x509.CertificateBuilder(name, name, rsa_key(number).public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=30)).not_valid_after(now + timedelta(days=30))
    return builder.sign(rsa_key(number), hashes.SHA256())


def pem_of(number: int = 0) -> bytes:
    return certificate(number).public_bytes(serialization.Encoding.PEM)


def _public(key: rsa.RSAPrivateKey) -> bytes:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


def _pem(key: Any) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem: bytes = key.private_bytes(encoding, form, serialization.NoEncryption())
    return pem.decode()


@dataclass(frozen=True, eq=False)
class Sender:
    """A provider that signs with one of its alternatives."""

    provider: Provider
    signature: Signature

    def __str__(self) -> str:
        if self.signature is self.provider.signatures[0]:
            return self.provider.name
        return f"{self.provider.name}-{self.signature.prefix.strip(',=') or self.signature.algorithm}"

    @property
    def in_body(self) -> bool:
        """Whether the signature is a part of the body."""
        return self.header is None

    @property
    def own_form(self) -> bool:
        return self.signature.family.named_by == "algorithm"

    @property
    def stamps(self) -> bool:
        """Whether it signs a time."""
        return self.provider.timestamp is not None and self.signature.timestamp

    @property
    def sends_form(self) -> bool:
        return self.provider.content[0] == "form"

    @property
    def header(self) -> str | None:
        """The header with the signature."""
        name = self.signature.family.signature_header(self.signature)
        return name.replace("*", "1") if name else None

    @property
    def types(self) -> list[str]:
        """One event type for each example in the provider's definition."""
        return [example.type.replace("*", "paid") for example in self.provider.examples]

    def pair(self, number: int = 0) -> Pair:
        return pair(self.signature.algorithm, self.signature.key, number)

    def source(self, *secrets: str, name: str = "here", **settings: Any) -> Source:
        """A source of this provider with these secrets, or with the first key pair."""
        values = {"provider": self.provider.name, "secrets": list(secrets or [self.pair().verifying])}
        values |= {name: OPTIONS[name] for name in self.provider.options} | settings
        return Source(name, read_source(name, values), max_body=2**20, certificates=Certificates(fetch=_unreachable))

    def compose(self, type_: str | None = None, *, number: int = 0, now: float = NOW) -> Delivery:
        """A new event, signed with the `number`th secret."""
        signing = self.pair(number).signing
        sample = compose(self.provider, type_ or self.types[0], signing, now=now, settings=self.settings())
        return Delivery.of(sample.body, sample.headers)

    def settings(self) -> SourceSettings:
        """The settings of the source, some of which go into the signature."""
        return read_source("here", {name: OPTIONS[name] for name in self.provider.options})

    def resend(self, delivery: Delivery, *, now: float, body: bytes | None = None) -> Delivery:
        """The same event in a later delivery, or with another body, signed again."""
        headers = {name.decode(): value.decode("latin-1") for name, value in delivery.headers.items()}
        for name in (self.header, self.provider.timestamp and self.provider.timestamp.header):
            headers.pop((name or "").lower(), None)
        content = delivery.body if body is None else body
        signing = self.pair().signing
        signed, content = sign(self.provider, content, signing, headers=headers, now=now, settings=self.settings())
        return Delivery.of(content, signed)

    def stamped(self, stamp: str) -> Delivery:
        """A correctly signed delivery with this timestamp."""
        delivery, where = self.compose(), self.provider.timestamp
        assert where is not None
        if where.body:
            return self.resend(delivery, now=NOW, body=put(delivery.body, where.body.split("|")[0], stamp))
        raw = stamp.encode()
        headers = dict(delivery.headers)
        if where.header:
            headers[where.header.lower().encode()] = raw
        template = Template(self.signature.template, PUBLIC_URL.encode())
        message = template.fill(delivery := changed(delivery, headers), body_of(delivery), raw)
        assert message is not None
        kind = algorithm(self.signature.algorithm)
        signed = kind.sign(kind.load_signing(self.pair().signing, self.signature.key), message)
        value = self.signature.prefix.encode() + encode(signed, self.signature.encoding)
        if self.signature.fields:
            value = f"{where.field}={stamp}{self.signature.fields}{self.signature.field}=".encode() + value
        assert self.signature.header is not None
        return changed(delivery, {**headers, self.signature.header.lower().encode(): value})


def body_of(delivery: Delivery) -> Body:
    return Body(delivery, lambda headers: False)


async def _unreachable(url: str) -> bytes:
    raise OSError("nothing is fetched in this test")


def _senders() -> list[Sender]:
    """Every provider with its first signature, and with each further one that has another kind of key."""
    senders = []
    for provider in map(built_in, built_in_names()):
        kinds = {(signature.algorithm, signature.key): signature for signature in reversed(provider.signatures)}
        senders += [Sender(provider, signature) for signature in reversed(kinds.values())]
    return senders


SENDERS = _senders()


def sender(name: str) -> Sender:
    return next(candidate for candidate in SENDERS if str(candidate) == name)


# -- changing a delivery --------------------------------------------------------------------------------------------


def changed(delivery: Delivery, headers: Mapping[bytes, bytes] | None = None, *, body: bytes | None = None) -> Delivery:
    kept = delivery.headers if headers is None else headers
    return Delivery(delivery.body if body is None else body, kept.items())


def put(body: bytes, path: str, value: Any) -> bytes:
    """The JSON body with another value at a path."""
    parsed = msgspec.json.decode(body)
    *steps, last = path.split(".")
    inner = at(parsed, steps)
    inner[last] = value
    return msgspec.json.encode(parsed)


def at(parsed: Any, steps: list[str]) -> Any:
    for step in steps:
        parsed = parsed[int(step)] if isinstance(parsed, list) else parsed[step]
    return parsed


# -- verifying and reading ------------------------------------------------------------------------------------------


def make_verifier(name: str, *secrets: str, settings: SourceSettings | None = None) -> Verifier:
    """The verifier of a built-in provider, with SECRET unless others are passed."""
    return Verifier(built_in(name), secrets or (SECRET,), where=f"sources.{name}", settings=settings)


def make_custom_verifier(signature: dict[str, Any], **table: Any) -> Verifier:
    """The verifier of a provider in the user's configuration."""
    definition = {"event": {"id": "id", "type": "type"}, "signatures": [signature], **table}
    return Verifier(read_provider("acme", definition, "providers.acme"), [SECRET], where="sources.acme")


def rejection_reason(verifier: Verifier, delivery: Delivery, now: float = NOW) -> str:
    """Why the verifier rejects a delivery. Fails the test if it accepts the delivery."""
    with pytest.raises(Rejected) as caught:
        verifier.verify(delivery, now)
    return caught.value.reason


def is_accepted(provider: Sender, delivery: Delivery) -> bool:
    """Whether a source of the provider verifies the delivery with its first secret."""
    verifier = provider.source().verifier
    assert verifier is not None
    try:
        return verifier.verify(delivery, NOW) == 0
    except Rejected:
        return False


def make_source(provider: str = "stripe", own: dict[str, Any] | None = None, **settings: Any) -> Source:
    """A source whose secret is "secret". `own` are definitions in the user's configuration."""
    values = {"provider": provider, "secrets": ["secret"], **settings}
    return Source("here", read_source("here", values), own_providers=own or {}, max_body=1000)


def read_claims(source: Source, body: bytes, **headers: str) -> list[Claim]:
    """The claims of a delivery with this body. `_` in the name of a header stands for `-`."""
    delivery = Delivery.of(body, {name.replace("_", "-"): value for name, value in headers.items()})
    return source.read(delivery, source.parse(delivery))


def read_claim(source: Source, body: bytes, **headers: str) -> Claim:
    """The only claim of a delivery with this body."""
    (claim,) = read_claims(source, body, **headers)
    return claim
