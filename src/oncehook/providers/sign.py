"""The other direction of `verify`: a delivery as its provider would send it, signed with a secret.

Used by `oncehook send`, the demo and the tests. What this signs, `verify` accepts; the tests hold the pair together
for every provider, and against what the providers' own libraries sign and accept.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlencode

import msgspec

from oncehook.model.delivery import Delivery
from oncehook.providers.definition import Provider, Signature, Timestamp
from oncehook.providers.expressions import parse
from oncehook.providers.families import braintree_form as braintree
from oncehook.providers.families import paypal_form as paypal
from oncehook.providers.families import plaid_form as plaid
from oncehook.providers.families.sns_form import signed_message
from oncehook.providers.signatures import Key, algorithm, encode
from oncehook.providers.template import Body, Template

FORM = "application/x-www-form-urlencoded"
PAYPAL_CERTIFICATE = "https://api.paypal.com/v1/notifications/certs/CERT-example"
PLAID_KEY = "example-key"


@dataclass(frozen=True, slots=True)
class _Unsigned:
    """A delivery before it is signed."""

    provider: Provider
    body: bytes
    headers: dict[str, str]
    now: float
    public_url: str
    webhook_id: str

    def delivery(self) -> Delivery:
        query = self.public_url.partition("?")[2].encode()
        pairs = ((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items())
        return Delivery(self.body, pairs, query=query)


Signed = tuple[dict[str, str], bytes]


def sign(
    provider: Provider,
    body: bytes,
    secret: str,
    *,
    headers: Mapping[str, str] | None = None,
    now: float,
    public_url: str = "",
    webhook_id: str = "",
) -> Signed:
    """The headers and body of a delivery as `provider` would send it, signed with `secret`.

    `headers` are those that the signature covers or the event needs (`webhook-id`, say); they are in the
    result too. The body is changed only for providers that carry their signature inside it. For asymmetric
    schemes `secret` is the private key. `public_url` and `webhook_id` are the settings of the source, for the
    providers that sign them.
    """
    unsigned = _Unsigned(provider, body, dict(headers or {}), now, public_url, webhook_id)
    signature = _signing(provider, secret)
    if signature.algorithm in _OWN_FORM:
        return _OWN_FORM[signature.algorithm](unsigned, secret)
    if signature.each is not None:
        return unsigned.headers, _sign_each(unsigned, signature, secret)
    return _sign_template(unsigned, signature, secret)


def _signing(provider: Provider, secret: str) -> Signature:
    """The alternative whose signing key `secret` is; if it is none's, one of its kind, to say what is wrong with it."""
    of_its_kind = None
    asymmetric = secret.startswith(("whsk_", "-----BEGIN"))
    for signature in provider.signatures:
        if signature.algorithm in _OWN_FORM:
            return signature
        if (signature.key in ("whpk", "public")) != asymmetric or not provider.takes(signature, secret):
            continue
        of_its_kind = of_its_kind or signature
        try:
            _signing_key(signature.algorithm, secret, signature.key)
        except ValueError:
            continue
        return signature
    return of_its_kind or provider.signatures[0]


@lru_cache(8)  # a private key is checked when it is read, which takes longer than to sign with it
def _signing_key(name: str, secret: str, form: str) -> Key:
    return algorithm(name).load_signing(secret, form)


# -- over a template ------------------------------------------------------------------------------------------------


def _sign_template(unsigned: _Unsigned, signature: Signature, secret: str) -> Signed:
    provider, signed = unsigned.provider, unsigned.headers
    timestamp = provider.timestamp if signature.timestamp else None
    stamp = _stamp_for(timestamp, unsigned.now)
    if timestamp and timestamp.header:
        signed[timestamp.header] = stamp
    delivery = unsigned.delivery()
    template = Template(signature.template, unsigned.public_url.partition("?")[0].encode())
    message = template.fill(delivery, Body(delivery, provider.sends_form), stamp.encode())
    if message is None:
        raise ValueError(f"{provider.name}: the delivery lacks a part that {signature.template!r} names")
    value = _encoded(signature, message, secret)
    if signature.header is None:
        return signed, _place(unsigned.body, signature.body or "", value)
    if signature.fields and signature.field:
        parts = [f"{signature.field}={value}"]
        if timestamp and timestamp.field:
            parts.insert(0, f"{timestamp.field}={stamp}")
        value = signature.fields.join(parts)
    signed[signature.header.replace("*", "1")] = value
    return signed, unsigned.body


def _encoded(signature: Signature, message: bytes, secret: str) -> str:
    kind = algorithm(signature.algorithm)
    raw = kind.sign(_signing_key(signature.algorithm, secret, signature.key), message)
    return signature.prefix + (raw if signature.algorithm == "token" else encode(raw, signature.encoding)).decode()


def _stamp_for(timestamp: Timestamp | None, now: float) -> str:
    if timestamp is not None and timestamp.unit == "ms":
        return str(int(now * 1000))
    if timestamp is not None and timestamp.unit == "iso":
        return _iso(now)
    return str(int(now))


def _iso(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _place(body: bytes, path: str, value: str) -> bytes:
    parsed = _object(body)
    _put(parsed, path, value)
    return msgspec.json.encode(parsed)


def _put(inner: dict[str, Any], path: str, value: str) -> None:
    *steps, last = path.split(".")
    for step in steps:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            raise ValueError(f"there is no place for a signature at {path}")
    inner[last] = value


def _sign_each(unsigned: _Unsigned, signature: Signature, secret: str) -> bytes:
    parsed = _object(unsigned.body)
    elements: Any = parsed
    for step in (signature.each or "").split("."):
        elements = elements.get(step) if isinstance(elements, dict) else None
    if not isinstance(elements, list) or not all(isinstance(element, dict) for element in elements):
        raise ValueError(f"there is no array of objects at {signature.each}")
    for element in elements:
        one = Delivery(msgspec.json.encode(element))
        message = Template(signature.template).fill(one, Body(one, lambda headers: False), None)
        if message is None:
            raise ValueError(f"an element lacks a part that {signature.template!r} names")
        _put(element, signature.body or "", _encoded(signature, message, secret))
    return msgspec.json.encode(parsed)


def _object(body: bytes) -> dict[str, Any]:
    parsed = parse(body)
    if not isinstance(parsed, dict):
        raise ValueError("the signature goes into the body, so that must be a JSON object")
    return parsed


# -- the other families ---------------------------------------------------------------------------------------------


def _sign_basic(unsigned: _Unsigned, secret: str) -> Signed:
    password = "Basic " + base64.b64encode(secret.encode()).decode()
    return {**unsigned.headers, "Authorization": password}, unsigned.body


def _sign_sns(unsigned: _Unsigned, secret: str) -> Signed:
    fields = {"SignatureVersion": "2", **_object(unsigned.body)}
    message = signed_message({name: value for name, value in fields.items() if isinstance(value, str)})
    if message is None:
        raise ValueError("the body lacks a field that SNS signs")
    name = "rsa-sha1" if fields["SignatureVersion"] == "1" else "rsa-sha256"
    fields["Signature"] = encode(algorithm(name).sign(_signing_key(name, secret, "public"), message), "base64").decode()
    return unsigned.headers, msgspec.json.encode(fields)


def _sign_paypal(unsigned: _Unsigned, secret: str) -> Signed:
    names = {"PAYPAL-CERT-URL": PAYPAL_CERTIFICATE, "PAYPAL-AUTH-ALGO": "SHA256withRSA"}
    headers = {name.upper(): value for name, value in unsigned.headers.items()}
    headers = {**names, **headers, "PAYPAL-TRANSMISSION-TIME": _iso(unsigned.now)}
    lower = {name.lower().encode(): value.encode() for name, value in headers.items()}
    message = paypal.signed_message(lower, unsigned.body, unsigned.webhook_id)
    if message is None:
        raise ValueError("PAYPAL-TRANSMISSION-ID is signed, so it must be given")
    name = "rsa-sha256"
    value = encode(algorithm(name).sign(_signing_key(name, secret, "public"), message), "base64").decode()
    return {**headers, "PAYPAL-TRANSMISSION-SIG": value}, unsigned.body


def _sign_plaid(unsigned: _Unsigned, secret: str) -> Signed:
    message = plaid.unsigned(PLAID_KEY, int(unsigned.now), unsigned.body)
    name = "ecdsa-p256-sha256"
    signature = plaid.halves(algorithm(name).sign(_signing_key(name, secret, "public"), message))
    token = message + b"." + plaid.encode(signature)
    return {**unsigned.headers, "Plaid-Verification": token.decode()}, unsigned.body


def _sign_braintree(unsigned: _Unsigned, secret: str) -> Signed:
    """The body may be the XML, or the form that holds it."""
    public, key = braintree.load_key(secret)
    fields = parse_qs(unsigned.body.decode("utf-8", "replace"))
    payload = fields["bt_payload"][0] if "bt_payload" in fields else base64.b64encode(unsigned.body).decode() + "\n"
    signature = (public + b"|" + braintree.sign(key, payload.encode())).decode()
    body = urlencode({"bt_signature": signature, "bt_payload": payload}).encode()
    return {**unsigned.headers, "Content-Type": FORM}, body


_OWN_FORM = {
    "basic": _sign_basic,
    "sns": _sign_sns,
    "paypal": _sign_paypal,
    "plaid": _sign_plaid,
    "braintree": _sign_braintree,
}
