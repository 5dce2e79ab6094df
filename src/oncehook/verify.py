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
from typing import Any, NoReturn, Protocol

from oncehook.errors import ConfigurationError, Rejected
from oncehook.extract import NotReadable, TooDeep, look_up, moment, parse
from oncehook.providers import Provider, Signature, Timestamp
from oncehook.providers.certificates import Certificates
from oncehook.providers.sns import certificate_url, signed_message
from oncehook.receipt import Delivery
from oncehook.settings import duration
from oncehook.signatures import Key, algorithm

MOST_SIGNATURES = 32
"""More signatures than this in one header are not a rotation but an attack on our CPU."""

FUTURE = 300.0
"""How far ahead of our clock a timestamp may be, where the provider's past side is longer."""


class Body:
    """The body as plain data, parsed at most once, and only by the checks whose signature is inside it."""

    __slots__ = ("_delivery", "_parsed", "_read")

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._read = False
        self._parsed: Any = None

    def at(self, path: str) -> str | None:
        """The text at a path, or at the first of several (`a.b|c`)."""
        if not self._read:
            self._read, self._parsed = True, self._parse()
        for choice in path.split("|"):
            value = look_up(self._parsed, choice.split("."))
            if isinstance(value, str):
                return value
        return None

    def fields(self) -> dict[str, Any]:
        self.at("")
        return self._parsed if isinstance(self._parsed, dict) else {}

    def _parse(self) -> Any:
        content = self._delivery.headers.get(b"content-type", b"")
        try:
            return parse(self._delivery.body, form=content.startswith(b"application/x-www-form-urlencoded"))
        except (NotReadable, TooDeep):
            return None


class Check(Protocol):
    """One alternative of a provider's signatures, with the source's keys for it."""

    def matches(self, delivery: Delivery, body: Body) -> tuple[int, str | None] | None:
        """The index of the secret that verifies and the timestamp it covers, or None."""


# -- templates ------------------------------------------------------------------------------------------------------

Values = Callable[[str], bytes | None]  # placeholder → its bytes in this request
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


class Template:
    """What is signed: `{body}`, `{timestamp}`, `{method}`, `{header:NAME}` and `{body:PATH}` in literal text."""

    def __init__(self, template: str) -> None:
        pieces = _PLACEHOLDER.split(template)
        self.pieces = [piece if i % 2 else piece.encode() for i, piece in enumerate(pieces) if i % 2 or piece]
        self.headers = [p[len("header:") :].lower().encode() for p in pieces[1::2] if p.startswith("header:")]

    def fill(self, delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        """The signed message of this request, or None if a part of it is missing."""
        parts: list[bytes] = []
        for piece in self.pieces:
            part = piece if isinstance(piece, bytes) else self._value(piece, delivery, body, timestamp)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _value(self, name: str, delivery: Delivery, body: Body, timestamp: bytes | None) -> bytes | None:
        if name == "body":
            return delivery.body
        if name == "timestamp":
            return timestamp
        if name == "method":
            return delivery.method.encode()
        if name.startswith("header:"):
            return delivery.headers.get(name[len("header:") :].lower().encode())
        text = body.at(name[len("body:") :])
        return None if text is None else text.encode("utf-8", "surrogatepass")


class TemplateCheck:
    """A signature, encoded in a header or in the body, over a template of the request."""

    def __init__(self, signature: Signature, timestamp: Timestamp | None, keys: Sequence[tuple[int, Key]]) -> None:
        self.signature = signature
        self.algorithm = algorithm(signature.algorithm)
        self.keys = keys
        self.template = Template(signature.template)
        self.header = signature.header.lower().encode() if signature.header else None
        self.prefix = signature.prefix.encode()
        self.timestamp = timestamp
        self.timestamp_header = timestamp.header.lower().encode() if timestamp and timestamp.header else None
        self.guarded = {name for name in (self.header, self.timestamp_header, *self.template.headers) if name}

    def matches(self, delivery: Delivery, body: Body) -> tuple[int, str | None] | None:
        if delivery.repeated and not self.guarded.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature came twice")
        given, fields = self._given(delivery, body)
        if not given:
            return None
        stamp = self._stamp(delivery, body, fields)
        message = self.template.fill(delivery, body, stamp)
        if message is None:
            return None
        for index, key in self.keys:
            for candidate in given:
                if self.algorithm.verify(key, message, candidate, self.signature.encoding):
                    return index, None if stamp is None else stamp.decode("latin-1")
        return None

    def _given(self, delivery: Delivery, body: Body) -> tuple[list[bytes], dict[bytes, list[bytes]]]:
        """The signatures in the request without their prefix, and the fields of their header."""
        fields: dict[bytes, list[bytes]] = {}
        if self.header is None:
            text = body.at(self.signature.body or "")
            return ([] if text is None else [text.encode("utf-8", "surrogatepass")]), fields
        value = delivery.headers.get(self.header)
        if value is None:
            return [], fields
        if self.signature.fields is not None and self.signature.field is not None:
            fields = _fields(value, self.signature.fields.encode())
            found = fields.get(self.signature.field.encode(), [])
        elif self.signature.separator is not None:
            found = value.split(self.signature.separator.encode(), MOST_SIGNATURES + 1)
        else:
            found = [value]
        if len(found) > MOST_SIGNATURES:
            raise Rejected("malformed", f"more than {MOST_SIGNATURES} signatures")
        size = len(self.prefix)
        return [one[size:] for one in found if one.startswith(self.prefix) and len(one) > size], fields

    def _stamp(self, delivery: Delivery, body: Body, fields: Mapping[bytes, list[bytes]]) -> bytes | None:
        where = self.timestamp
        if where is None:
            return None
        if self.timestamp_header is not None:
            return delivery.headers.get(self.timestamp_header)
        if where.field is not None:
            stamps = fields.get(where.field.encode(), [])
            return stamps[0] if len(stamps) == 1 else None
        text = body.at(where.body or "")
        return None if text is None else text.encode("utf-8", "surrogatepass")


def _fields(value: bytes, separator: bytes) -> dict[bytes, list[bytes]]:
    fields: dict[bytes, list[bytes]] = {}
    for part in value.split(separator, 2 * MOST_SIGNATURES):
        name, equals, content = part.partition(b"=")
        if equals:
            fields.setdefault(name.strip(b" "), []).append(content)
    return fields


# -- the other families ---------------------------------------------------------------------------------------------


class BasicCheck:
    """HTTP basic authentication: nothing is signed, whoever has the password may post."""

    def __init__(self, keys: Sequence[tuple[int, bytes]]) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> tuple[int, str | None] | None:
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

    def __init__(
        self, keys: Sequence[tuple[int, Key]], certificates: Certificates, topics: Sequence[re.Pattern[str]]
    ) -> None:
        self.keys = keys
        self.certificates = certificates
        self.topics = topics

    def matches(self, delivery: Delivery, body: Body) -> tuple[int, str | None] | None:
        fields = body.fields()
        message = signed_message(fields)
        version, given = fields.get("SignatureVersion"), fields.get("Signature")
        if message is None or version not in ("1", "2") or not isinstance(given, str):
            return None
        if not any(topic.fullmatch(fields["TopicArn"]) for topic in self.topics):
            raise Rejected("bad_signature", "the topic is not in the source's topics")
        check = algorithm("rsa-sha1" if version == "1" else "rsa-sha256")
        for index, key in self.keys or self._fetched(fields):
            if check.verify(key, message, given.encode("utf-8", "surrogatepass"), "base64"):
                return index, fields["Timestamp"]
        return None

    def _fetched(self, fields: Mapping[str, Any]) -> list[tuple[int, Key]]:
        url = certificate_url(fields)
        certificate = self.certificates.get(url) if url else None
        if certificate is None:
            return []
        signed = moment(fields["Timestamp"])
        if signed is None or not certificate.not_valid_before_utc <= signed <= certificate.not_valid_after_utc:
            return []
        return [(0, certificate.public_key())]


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
        self.window = _window(provider, tolerance)
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
        body = Body(delivery)
        for check in self.checks:
            found = check.matches(delivery, body)
            if found is not None:
                index, stamp = found
                if self.window is not None:
                    _check_window(stamp, self.window, now)
                return index
        raise Rejected("bad_signature", "no signature in the request matches a secret of the source")

    def certificate_wanted(self, delivery: Delivery) -> str | None:
        """The address of a certificate that must be fetched before this delivery can be verified, if any."""
        if not any(isinstance(check, SnsCheck) and not check.keys for check in self.checks):
            return None
        return certificate_url(Body(delivery).fields())


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
        user, colon, password = secret.partition(":")
        if not (colon and user and password):
            raise ValueError("it is not user:password")
        return secret.encode()
    if signature.algorithm == "sns":
        return algorithm("rsa-sha256").load(secret, "public")
    if (signature.key == "whpk") != secret.startswith("whpk_") and signature.key in ("whpk", "whsec"):
        raise ValueError("it is a key for another kind of signature")
    return algorithm(signature.algorithm).load(secret, signature.key)


def _make_check(
    signature: Signature,
    timestamp: Timestamp | None,
    keys: Sequence[tuple[int, Key]],
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


def _window(provider: Provider, tolerance: float | None) -> Window | None:
    if provider.timestamp is None:
        return None
    allowed = duration(provider.timestamp.tolerance) if tolerance is None else tolerance
    if provider.timestamp.stamps == "attempt":
        return provider.timestamp.unit, allowed, allowed
    return provider.timestamp.unit, (provider.horizon or 0.0) + allowed, min(allowed, FUTURE)


_DIGITS = re.compile(r"[0-9]{1,15}")


def _check_window(stamp: str | None, window: Window, now: float) -> None:
    unit, past, future = window
    seconds = _seconds(stamp or "", unit)
    if seconds is None:
        _refuse("the timestamp is missing or not a number")
    if seconds < now - past:
        raise Rejected("stale_timestamp", "the timestamp is too old")
    if seconds > now + future:
        raise Rejected("stale_timestamp", "the timestamp is in the future")


def _seconds(stamp: str, unit: str) -> float | None:
    if unit == "iso":
        read = None if stamp.isdecimal() else moment(stamp)
        return None if read is None else read.timestamp()
    if not _DIGITS.fullmatch(stamp):
        return None
    return int(stamp) / 1000 if unit == "ms" else float(int(stamp))


def _refuse(detail: str) -> NoReturn:
    raise Rejected("bad_signature", detail)
