"""The other direction of `verify`: a delivery as its provider would send it, signed with a secret.

Used by `oncehook send`, the demo and the tests. What this signs, `verify` accepts; the tests hold the pair together
for every provider, and against what the providers' own libraries sign and accept.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from oncehook.extract import parse
from oncehook.providers import Provider, Signature, Timestamp
from oncehook.providers.sns import signed_message
from oncehook.receipt import Delivery
from oncehook.signatures import algorithm, encode
from oncehook.template import Body, Template


def sign(
    provider: Provider, body: bytes, secret: str, *, headers: Mapping[str, str] | None = None, now: float
) -> tuple[dict[str, str], bytes]:
    """The headers and body of a delivery as `provider` would send it, signed with `secret`.

    `headers` are those that the signature covers or the event needs (`webhook-id`, say); they are in the
    result too. The body is changed only for providers that carry their signature inside it. For asymmetric
    schemes `secret` is the private key.
    """
    signed = dict(headers or {})
    signature = _signing(provider, secret)
    if signature.algorithm == "basic":
        signed["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        return signed, body
    if signature.algorithm == "sns":
        return signed, _sign_sns(body, secret)
    stamp = _stamp_for(provider.timestamp, now)
    if provider.timestamp and provider.timestamp.header:
        signed[provider.timestamp.header] = stamp
    delivery = Delivery.of(body, signed)
    message = Template(signature.template).fill(delivery, Body(delivery, provider.sends_form), stamp.encode())
    if message is None:
        raise ValueError(f"{provider.name}: the delivery lacks a part that {signature.template!r} names")
    value = _encoded(signature, message, secret)
    if signature.header is None:
        return signed, _place(body, signature.body or "", value)
    if signature.fields and signature.field:
        parts = [f"{signature.field}={value}"]
        if provider.timestamp and provider.timestamp.field:
            parts.insert(0, f"{provider.timestamp.field}={stamp}")
        value = signature.fields.join(parts)
    signed[signature.header] = value
    return signed, body


def _encoded(signature: Signature, message: bytes, secret: str) -> str:
    kind = algorithm(signature.algorithm)
    raw = kind.sign(kind.load_signing(secret, signature.key), message)
    return signature.prefix + (raw if signature.algorithm == "token" else encode(raw, signature.encoding)).decode()


def _signing(provider: Provider, secret: str) -> Signature:
    """The alternative whose signing key `secret` is."""
    asymmetric = secret.startswith(("whsk_", "-----BEGIN"))
    for signature in provider.signatures:
        if signature.algorithm in ("sns", "basic") or (signature.key in ("whpk", "public")) == asymmetric:
            return signature
    return provider.signatures[0]


def _stamp_for(timestamp: Timestamp | None, now: float) -> str:
    if timestamp is not None and timestamp.unit == "ms":
        return str(int(now * 1000))
    if timestamp is not None and timestamp.unit == "iso":
        return _iso(now)
    return str(int(now))


def _iso(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _place(body: bytes, path: str, value: str) -> bytes:
    parsed = inner = _object(body)
    *steps, last = path.split(".")
    for step in steps:
        inner = inner.setdefault(step, {})
        if not isinstance(inner, dict):
            raise ValueError(f"there is no place for a signature at {path}")
    inner[last] = value
    return msgspec.json.encode(parsed)


def _sign_sns(body: bytes, secret: str) -> bytes:
    fields = {"SignatureVersion": "2", **_object(body)}
    message = signed_message({name: value for name, value in fields.items() if isinstance(value, str)})
    if message is None:
        raise ValueError("the body lacks a field that SNS signs")
    kind = algorithm("rsa-sha1" if fields["SignatureVersion"] == "1" else "rsa-sha256")
    fields["Signature"] = encode(kind.sign(kind.load_signing(secret, "public"), message), "base64").decode()
    return msgspec.json.encode(fields)


def _object(body: bytes) -> dict[str, Any]:
    parsed = parse(body)
    if not isinstance(parsed, dict):
        raise ValueError("the signature goes into the body, so that must be a JSON object")
    return parsed
