"""Signatures over a template of the request. Most providers use this family, so it is on the hot path."""

import re
import secrets
from collections.abc import Callable, Sequence

import msgspec

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import key_pairs
from oncehook.providers.definition import Provider, Signature, Timestamp
from oncehook.providers.expressions import iso_time
from oncehook.providers.family import (
    Check,
    CheckContext,
    Family,
    Keys,
    Match,
    NamedBy,
    SignedDelivery,
    UnsignedDelivery,
    WrongKeyKind,
)
from oncehook.providers.key_pairs import Pair
from oncehook.providers.placement import json_object, set_at
from oncehook.providers.signatures import Key, algorithm, encode, signing_key
from oncehook.providers.template import Body, Template, compile_paths

MAX_SIGNATURES = 32
"""The most signatures in one request. A rotation needs two or three; more would only cost CPU time."""

PUBLIC_KEYS = ("whpk", "public")  # formats of public keys: only the sender can sign
RequestSignatures = tuple[Sequence[bytes], bytes | None]  # the signatures in the request, and its timestamp
_NONE: RequestSignatures = (), None


class TemplateCheck:
    """Verifies a signature in a header or in the body over a template of the request."""

    def __init__(self, signature: Signature, timestamp: Timestamp | None, keys: Keys) -> None:
        timestamp = timestamp if signature.timestamp else None
        self.stamped = timestamp is not None
        self.keys = keys
        self.verify = algorithm(signature.algorithm).verify
        self.encoding = signature.encoding
        template = Template(signature.template)
        self.fill = template.fill
        self.header = _header(signature.header or "")
        self.prefix = signature.prefix.encode()
        separator = signature.fields and (signature.fields.strip() or signature.fields)  # spaces around it are optional
        self.separator = (separator or signature.separator or "").encode()
        self.field = (signature.field or "").encode()
        self.paths = compile_paths(signature.body or "")
        stamp = timestamp or Timestamp()
        self.stamp_header = _header(stamp.header or "")
        self.stamp_field = stamp.field.encode() if stamp.field else None
        self.stamp_paths = compile_paths(stamp.body) if stamp.body else None
        self.guarded = {name for name in (self.header, self.stamp_header, *template.headers) if name}
        self.find: Callable[[Delivery, Body], RequestSignatures] = self._find_in_header
        if self.header.endswith(b"*"):
            self.header = self.header[:-1]
            self.guarded.discard(self.header + b"*")
            self.find = self._find_in_headers
        elif signature.fields is not None:
            self.find = self._find_in_fields
        elif signature.header is None:
            self.find = self._find_in_body

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if delivery.repeated and not self.guarded.isdisjoint(delivery.repeated):
            raise Rejected("malformed", "a header of the signature is repeated")
        signatures, stamp = self.find(delivery, body)
        if not signatures:
            return None
        message = self.fill(delivery, body, stamp)
        if message is not None:
            for index, key in self.keys:
                if self.verify(key, message, signatures, self.encoding):
                    return index, stamp
        return None

    def _find_in_header(self, delivery: Delivery, body: Body) -> RequestSignatures:
        value = delivery.headers.get(self.header)
        if value is None:
            return _NONE
        parts = value.split(self.separator, MAX_SIGNATURES + 1) if self.separator else [value]
        return self._without_prefix(parts), self._stamp(delivery, body)

    def _find_in_fields(self, delivery: Delivery, body: Body) -> RequestSignatures:
        """Read fields such as `t=…,v1=…,v1=…`. A repeated timestamp is ambiguous, so it is None."""
        signatures, stamps = [], []
        for part in delivery.headers.get(self.header, b"").split(self.separator, 2 * MAX_SIGNATURES):
            name, _, value = part.partition(b"=")
            name = name.strip(b" ")
            if name == self.field:
                signatures.append(value)
            elif name == self.stamp_field:
                stamps.append(value)
        if self.stamp_field is None:
            return self._without_prefix(signatures), self._stamp(delivery, body)
        return self._without_prefix(signatures), stamps[0] if len(stamps) == 1 else None

    def _find_in_headers(self, delivery: Delivery, body: Body) -> RequestSignatures:
        """Read several headers with a number at the end of the name, such as `X-DocuSign-Signature-1`."""
        signatures = []
        for name, value in delivery.headers.items():
            if name.startswith(self.header) and name[len(self.header) :].isdigit():
                if name in delivery.repeated:
                    raise Rejected("malformed", "a header of the signature is repeated")
                signatures.append(value)
        return self._without_prefix(signatures), self._stamp(delivery, body)

    def _find_in_body(self, delivery: Delivery, body: Body) -> RequestSignatures:
        value = body.at(self.paths)
        return _NONE if value is None else (self._without_prefix([value]), self._stamp(delivery, body))

    def _without_prefix(self, signatures: list[bytes]) -> list[bytes]:
        """Remove the prefix of each signature. A signature without it belongs to another scheme and is skipped."""
        if len(signatures) > MAX_SIGNATURES:
            raise Rejected("malformed", f"more than {MAX_SIGNATURES} signatures")
        prefix = self.prefix
        return [value[len(prefix) :] for value in signatures if value.startswith(prefix)] if prefix else signatures

    def _stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        if self.stamp_header:
            return delivery.headers.get(self.stamp_header)
        return None if self.stamp_paths is None else body.at(self.stamp_paths)


def _header(name: str) -> bytes:
    return name.strip().lower().encode()


class TemplateFamily(Family):
    """An algorithm of `providers/signatures.py` that signs a template of the request."""

    named_by: NamedBy = ""

    def load_key(self, signature: Signature, secret: str) -> Key:
        if (signature.key == "whpk") != secret.startswith("whpk_") and signature.key in ("whpk", "whsec"):
            raise ValueError("it is a key for another kind of signature")
        return algorithm(signature.algorithm).load(secret, signature.key)

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return TemplateCheck(signature, provider.timestamp, keys)

    def check_signing_key(self, signature: Signature, secret: str) -> None:
        if (signature.key in PUBLIC_KEYS) != secret.startswith(("whsk_", "-----BEGIN")):
            raise WrongKeyKind("it is a key for another kind of signature")
        signing_key(signature.algorithm, secret, signature.key)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        provider, headers = unsigned.provider, unsigned.headers
        timestamp = provider.timestamp if signature.timestamp else None
        stamp = _stamp_for(timestamp, unsigned.now)
        if timestamp and timestamp.header:
            headers[timestamp.header] = stamp
        delivery = unsigned.delivery()
        template = Template(signature.template, (unsigned.settings.public_url or "").partition("?")[0].encode())
        message = template.fill(delivery, Body(delivery, provider.sends_form), stamp.encode())
        if message is None:
            raise ValueError(f"{provider.name}: the delivery lacks a part that {signature.template!r} names")
        value = encoded_signature(signature, message, secret)
        if signature.header is None:
            parsed = json_object(unsigned.body)
            set_at(parsed, signature.body or "", value)
            return headers, msgspec.json.encode(parsed)
        if signature.fields and signature.field:
            parts = [f"{signature.field}={value}"]
            if timestamp and timestamp.field:
                parts.insert(0, f"{timestamp.field}={stamp}")
            value = signature.fields.join(parts)
        headers[signature.header.replace("*", "1")] = value
        return headers, unsigned.body

    def make_pair(self, signature: Signature) -> Pair:
        if signature.algorithm.startswith("rsa"):
            return key_pairs.rsa()
        if signature.algorithm.startswith("ecdsa"):
            return key_pairs.ecdsa()
        if signature.algorithm == "ed25519":
            return key_pairs.ed25519(signature.key)
        if signature.algorithm == "token":
            return key_pairs.shared("token_" + secrets.token_hex(16))  # never valid base64 or hex of a key
        return key_pairs.random_secret(signature.key)

    def shares_secret(self, signature: Signature) -> bool:
        return signature.key not in PUBLIC_KEYS

    def check_definition(self, signature: Signature, provider: Provider) -> None:
        _check_signature(signature)
        _check_timestamp(signature, provider.timestamp if signature.timestamp else None)

    def may_sign_challenges(self, signature: Signature) -> bool:
        literal = re.sub(r"\{[^{}]*\}", "", signature.template)
        is_separate = signature.template == "{body}" or bool(re.search(r"[^A-Za-z0-9_-]", literal))
        return signature.each is None and is_separate

    def signature_header(self, signature: Signature) -> str | None:
        return signature.header

    def sends_secret(self, signature: Signature) -> bool:
        return signature.algorithm == "token"

    def signed_content(self, signature: Signature, delivery: Delivery, body: Body) -> bytes:
        """The signed fields of a form, after the query. Their order and escapes in the body do not matter."""
        fields = body.form() if "{form}" in signature.template else None
        if fields is None:
            return delivery.body
        return b"?" + delivery.query + fields if delivery.query and signature.covers_address else fields


def encoded_signature(signature: Signature, message: bytes, secret: str) -> str:
    """The encoded signature of a message with its prefix, as a header or body carries it."""
    raw = algorithm(signature.algorithm).sign(signing_key(signature.algorithm, secret, signature.key), message)
    return signature.prefix + (raw if signature.algorithm == "token" else encode(raw, signature.encoding)).decode()


def _stamp_for(timestamp: Timestamp | None, now: float) -> str:
    if timestamp is not None and timestamp.unit == "ms":
        return str(int(now * 1000))
    return iso_time(now) if timestamp is not None and timestamp.unit == "iso" else str(int(now))


# -- checking definitions -------------------------------------------------------------------------------------------


def _check_signature(signature: Signature) -> None:
    if bool(signature.header) == bool(signature.body):
        raise ValueError("a signature is in a `header` or at a path in the `body`: set exactly one of them")
    if signature.each is not None and signature.body is None:
        raise ValueError("with `each`, `body` must be the path of the signature in an element")
    if signature.each is not None and signature.covers_address:
        raise ValueError("with `each`, `template` is filled from an element, which has no {url}")
    if (signature.fields is None) != (signature.field is None):
        raise ValueError("`fields` (the separator) and `field` (the name) must be set together")
    if "" in (signature.fields, signature.field, signature.separator):
        raise ValueError("`fields`, `field` and `separator` cannot be empty")
    shared = signature.algorithm.startswith("hmac-") or signature.algorithm == "token"
    if shared != (signature.key not in PUBLIC_KEYS):
        raise ValueError(f'`key = "{signature.key}"` is not a key format of {signature.algorithm}')


def _check_timestamp(signature: Signature, timestamp: Timestamp | None) -> None:
    names = Template(signature.template).names
    if timestamp is None:
        if "timestamp" in names:
            raise ValueError("`template` has {timestamp}, but no `timestamp` table says where the timestamp is")
        return
    if [bool(timestamp.header), bool(timestamp.field), bool(timestamp.body)].count(True) != 1:
        raise ValueError("`timestamp` is in a `header`, a `field` or the `body`: set exactly one of them")
    if timestamp.field and signature.fields is None:
        raise ValueError("`timestamp.field` is a field of the signature's header: set the signature's `fields` too")
    covering = {"timestamp", f"header:{timestamp.header}"}
    if timestamp.body:
        covering |= {"body", *(f"body:{path}" for path in timestamp.body.split("|"))}
    if covering.isdisjoint(names):
        raise ValueError("`template` does not cover the timestamp, so anyone could replace it: add {timestamp}")


FAMILY = TemplateFamily()
