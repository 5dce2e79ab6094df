"""Is this delivery authentic? `verify` says by which secret, or raises Rejected; nothing else can escape it.

A provider's `signatures` become checks, one class a family, each with its two directions:

    TemplateCheck   a signature over a template of the request (HMAC, Ed25519, ECDSA, RSA, a plain token)
    BasicCheck      HTTP basic authentication
    SnsCheck        Amazon SNS: named fields of the body, signed under a fetched certificate
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from oncehook.errors import ConfigurationError, Rejected
from oncehook.extract import moment
from oncehook.providers import Provider, Signature, Timestamp
from oncehook.providers.certificates import Certificates
from oncehook.providers.sns import NAMES, certificate_url, signed_message
from oncehook.receipt import Delivery
from oncehook.settings import duration
from oncehook.signatures import Key, algorithm, to_bytes
from oncehook.template import Body, Template, compile_paths

MOST_SIGNATURES = 32
"""More signatures than this in one header are not a rotation but an attack on our CPU."""

FUTURE = 300.0
"""How far ahead of our clock a timestamp may be, where the provider's past side is longer."""

Keys = Sequence[tuple[int, Key]]  # (index of the secret, its key)
Match = tuple[int, bytes | None]  # (index of the secret that verifies, the timestamp that it covers)


class Check(Protocol):
    """One alternative of a provider's signatures, with the source's keys for it."""

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        """The secret that verifies the delivery, or None. Raises Rejected where no other check may have its say."""


# -- a signature over a template ------------------------------------------------------------------------------------

Given = tuple[Sequence[bytes], bytes | None]  # the signatures in the request, and its timestamp
_NONE: Given = (), None


class TemplateCheck:
    """A signature, encoded in a header or in the body, over a template of the request."""

    def __init__(self, signature: Signature, timestamp: Timestamp | None, keys: Keys) -> None:
        self.keys = keys
        self.verify = algorithm(signature.algorithm).verify
        self.encoding = signature.encoding
        template = Template(signature.template)
        self.fill = template.fill
        self.header = _header(signature.header or "")
        self.prefix = signature.prefix.encode()
        self.separator = (signature.fields or signature.separator or "").encode()
        self.field = (signature.field or "").encode()
        self.paths = compile_paths(signature.body or "")
        stamp = timestamp or Timestamp()
        self.stamp_header = _header(stamp.header or "")
        self.stamp_field = stamp.field.encode() if stamp.field else None
        self.stamp_paths = compile_paths(stamp.body) if stamp.body else None
        self.guarded = {name for name in (self.header, self.stamp_header, *template.headers) if name}
        self.find: Callable[[Delivery, Body], Given] = self._find_in_header
        if signature.fields is not None:
            self.find = self._find_in_fields
        elif signature.header is None:
            self.find = self._find_in_body

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not self.guarded.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature came twice")
        given, stamp = self.find(delivery, body)
        if not given:
            return None
        message = self.fill(delivery, body, stamp)
        if message is not None:
            for index, key in self.keys:
                if self.verify(key, message, given, self.encoding):
                    return index, stamp
        return None

    def _find_in_header(self, delivery: Delivery, body: Body) -> Given:
        value = delivery.headers.get(self.header)
        if value is None:
            return _NONE
        parts = value.split(self.separator, MOST_SIGNATURES + 1) if self.separator else [value]
        return self._bare(parts), self._stamp(delivery, body)

    def _find_in_fields(self, delivery: Delivery, body: Body) -> Given:
        """Fields such as `t=…,v1=…,v1=…`: the signatures, and the timestamp if it is the only one of its name."""
        signatures, stamps = [], []
        for part in delivery.headers.get(self.header, b"").split(self.separator, 2 * MOST_SIGNATURES):
            name, _, value = part.partition(b"=")
            name = name.strip(b" ")
            if name == self.field:
                signatures.append(value)
            elif name == self.stamp_field:
                stamps.append(value)
        if self.stamp_field is None:
            return self._bare(signatures), self._stamp(delivery, body)
        return self._bare(signatures), stamps[0] if len(stamps) == 1 else None

    def _find_in_body(self, delivery: Delivery, body: Body) -> Given:
        value = body.at(self.paths)
        return _NONE if value is None else (self._bare([value]), self._stamp(delivery, body))

    def _bare(self, signatures: list[bytes]) -> list[bytes]:
        """Signatures without their prefix; those without the prefix are of another scheme."""
        if len(signatures) > MOST_SIGNATURES:
            raise Rejected("malformed", f"more than {MOST_SIGNATURES} signatures")
        prefix = self.prefix
        return [one[len(prefix) :] for one in signatures if one.startswith(prefix)] if prefix else signatures

    def _stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        if self.stamp_header:
            return delivery.headers.get(self.stamp_header)
        return None if self.stamp_paths is None else body.at(self.stamp_paths)


def _header(name: str) -> bytes:
    return name.strip().lower().encode()


# -- the other families ---------------------------------------------------------------------------------------------


class BasicCheck:
    """HTTP basic authentication: nothing is signed, whoever has the password may post."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if b"authorization" in delivery.repeated:
            raise Rejected("malformed", "a header of the signature came twice")
        scheme, _, encoded = delivery.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"basic":
            return None
        try:
            given = base64.b64decode(encoded.strip(b" "), validate=True)
        except binascii.Error:
            return None
        return next(((index, None) for index, key in self.keys if hmac.compare_digest(key, given)), None)


class SnsCheck:
    """Amazon SNS: the named fields of the body under a pinned key, or under the certificate that they name."""

    def __init__(self, keys: Keys, certificates: Certificates, topics: Sequence[re.Pattern[str]]) -> None:
        self.keys = keys
        self.certificates = certificates
        self.topics = topics

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        fields = self._fields(body)
        message = signed_message(fields)
        if message is None:
            return None
        check = algorithm("rsa-sha1" if fields["SignatureVersion"] == "1" else "rsa-sha256")
        given = (fields["Signature"].encode("utf-8", "surrogatepass"),)
        for index, key in self.keys or self._fetched(fields):
            if check.verify(key, message, given, "base64"):
                return index, fields["Timestamp"].encode("utf-8", "surrogatepass")
        return None

    def certificate_wanted(self, body: Body) -> str | None:
        """Nothing is fetched for a stranger: what is not for a topic of this source needs no certificate."""
        fields = self._fields(body)
        return None if self.keys or signed_message(fields) is None else certificate_url(fields)

    def _fields(self, body: Body) -> Mapping[str, str]:
        """The fields of a message that could be for this source; none if it is no such message."""
        fields = body.texts(NAMES) or {}
        if fields.get("SignatureVersion") not in ("1", "2") or "Signature" not in fields:
            return {}
        if not any(topic.fullmatch(fields.get("TopicArn", "")) for topic in self.topics):
            raise Rejected("bad_signature", "the topic is not in the source's topics")
        return fields

    def _fetched(self, fields: Mapping[str, str]) -> Keys:
        url = certificate_url(fields)
        certificate = self.certificates.get(url) if url else None
        signed = moment(fields["Timestamp"])
        if certificate is None or signed is None:
            return ()
        if not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return ()
        return ((0, certificate.public_key()),)


# -- a source's verifier --------------------------------------------------------------------------------------------


class Verifier:
    """A provider's checks with one source's secrets. Made at start-up; a secret that cannot be used stops it there."""

    def __init__(
        self,
        provider: Provider,
        secrets: Sequence[str],
        *,
        where: str,
        tolerance: float | None = None,
        topics: Sequence[re.Pattern[str]] = (),
        certificates: Certificates | None = None,
    ) -> None:
        self.provider = provider
        self.certificates = certificates or Certificates()
        self.window = window_of(provider, tolerance)
        fetched = any(signature.algorithm == "sns" for signature in provider.signatures)
        if not secrets and not fetched:
            raise ConfigurationError(
                f"{where}.secrets is empty: give the secret ({provider.secret or 'of this provider'}), "
                f'or write verify = "none" to accept unsigned deliveries'
            )
        keys = _load_keys(provider, secrets, where)
        self.checks: list[Check] = [
            _make_check(signature, provider.timestamp, keys[i], self.certificates, topics)
            for i, signature in enumerate(provider.signatures)
            if keys[i] or signature.algorithm == "sns"
        ]

    def verify(self, delivery: Delivery, now: float) -> int:
        """The index of the secret that verified the delivery. Raises Rejected for every other one."""
        body = Body(delivery, self.provider.sends_form)
        for check in self.checks:
            found = check.matches(delivery, body)
            if found is not None:
                index, stamp = found
                if self.window is not None:
                    _check_window(stamp, self.window, now)
                return index
        raise Rejected("bad_signature", "no signature in the request matches a secret of the source")

    def certificate_wanted(self, delivery: Delivery) -> str | None:
        """The address of a certificate that must be fetched before this delivery can be verified, if any.

        Raises Rejected for a delivery that no certificate could make authentic.
        """
        body = Body(delivery, self.provider.sends_form)
        wanted = (check.certificate_wanted(body) for check in self.checks if isinstance(check, SnsCheck))
        return next((url for url in wanted if url), None)


def _load_keys(provider: Provider, secrets: Sequence[str], where: str) -> list[list[tuple[int, Key]]]:
    """For each alternative, the secrets that fit it. One that fits none is an error that names it, not its value."""
    keys: list[list[tuple[int, Key]]] = [[] for _ in provider.signatures]
    for index, secret in enumerate(secrets):
        problems = []
        for i, signature in enumerate(provider.signatures):
            try:
                keys[i].append((index, _load_key(signature, secret)))
            except ValueError as error:
                problems.append(str(error))
        if len(problems) == len(provider.signatures):
            raise ConfigurationError(
                f"{where}.secrets[{index}] cannot be used: {problems[0]}. Expected: {provider.secret}"
            )
    return keys


def _load_key(signature: Signature, secret: str) -> Key:
    if not secret.strip():
        raise ValueError("it is empty")
    if signature.algorithm == "basic":
        user, _, password = secret.partition(":")
        if not (user.strip() and password.strip()):
            raise ValueError("it is not user:password")
        return to_bytes(secret)
    if signature.algorithm == "sns":
        return algorithm("rsa-sha256").load(secret, "public")
    if (signature.key == "whpk") != secret.startswith("whpk_") and signature.key in ("whpk", "whsec"):
        raise ValueError("it is a key for another kind of signature")
    return algorithm(signature.algorithm).load(secret, signature.key)


def _make_check(
    signature: Signature,
    timestamp: Timestamp | None,
    keys: Keys,
    certificates: Certificates,
    topics: Sequence[re.Pattern[str]],
) -> Check:
    if signature.algorithm == "basic":
        return BasicCheck(keys)
    if signature.algorithm == "sns":
        return SnsCheck(keys, certificates, topics)
    return TemplateCheck(signature, timestamp, keys)


# -- time -----------------------------------------------------------------------------------------------------------

Window = tuple[str, float, float]  # unit, seconds into the past, seconds into the future


def window_of(provider: Provider, tolerance: float | None) -> Window | None:
    """How far a timestamp may be from now, or None for a provider without one."""
    if provider.timestamp is None:
        return None
    allowed = duration(provider.timestamp.tolerance) if tolerance is None else tolerance
    if provider.timestamp.stamps == "attempt":
        return provider.timestamp.unit, allowed, allowed
    return provider.timestamp.unit, (provider.horizon or 0.0) + allowed, min(allowed, FUTURE)


def _check_window(stamp: bytes | None, window: Window, now: float) -> None:
    unit, past, future = window
    seconds = seconds_of(stamp, unit)
    if seconds is None:
        raise Rejected("bad_signature", "the timestamp is missing or not one")
    if seconds < now - past:
        raise Rejected("stale_timestamp", "the timestamp is too old")
    if seconds > now + future:
        raise Rejected("stale_timestamp", "the timestamp is in the future")


def seconds_of(stamp: bytes | None, unit: str) -> float | None:
    """A timestamp in Unix seconds, or None if it is none."""
    if stamp is None:
        return None
    if unit == "iso":
        read = moment(stamp.decode("latin-1")) if b"-" in stamp else None
        return None if read is None else read.timestamp()
    if len(stamp) > 15 or not stamp.isdigit():  # of bytes, ASCII digits and nothing else
        return None
    return int(stamp) / 1000 if unit == "ms" else int(stamp)
