"""Signatures or tokens in every element of an array. All of them must verify.

Adyen signs eight fields of each item, and Microsoft Graph repeats the secret in each. A check of only the first element
would accept any elements after it.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from oncehook.model.delivery import Delivery
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.families.template import TemplateFamily, encoded_signature
from oncehook.providers.family import Check, CheckContext, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.placement import json_object, set_at
from oncehook.providers.signatures import Key, algorithm
from oncehook.providers.template import Body, Template, compile_paths

MAX_ELEMENTS = 1000
"""A delivery with more elements is rejected before any is read. Adyen sends one, Microsoft Graph hundreds."""

FEW_BYTES = 16 * 1024
_decode_small = msgspec.json.Decoder(list[msgspec.Raw]).decode


@cache
def _bounded_decoder() -> msgspec.json.Decoder[Any]:
    """A decoder that stops at MAX_ELEMENTS. It is built on first use, because its 1,000 fields take milliseconds."""
    fields = [(f"element_{i}", msgspec.Raw | UnsetType, UNSET) for i in range(MAX_ELEMENTS)]
    return msgspec.json.Decoder(msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True))


def read_elements(array: bytes) -> list[msgspec.Raw] | None:
    """The elements of a JSON array. None if it is not an array, or has more than MAX_ELEMENTS."""
    try:
        elements = _decode_small(array) if len(array) <= FEW_BYTES else _decode_large(array)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return elements if len(elements) <= MAX_ELEMENTS else None


def _decode_large(array: bytes) -> list[msgspec.Raw]:
    return [element for element in astuple(_bounded_decoder().decode(array)) if element is not UNSET]


class EachCheck:
    """A signature in each element of the array at a path, over a template of that element."""

    stamped = False

    def __init__(self, signature: Signature, keys: Keys) -> None:
        self.keys = keys
        self.verify = algorithm(signature.algorithm).verify
        self.encoding = signature.encoding
        self.fill = Template(signature.template).fill
        self.steps = tuple((signature.each or "").split("."))
        self.paths = compile_paths(signature.body or "")

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        """Verify the elements one by one, and stop at the first that does not verify."""
        elements = self._elements(body)
        first = self._signed_parts(elements[0]) if elements else None
        for index, key in self.keys:
            rest = (self._signed_parts(element) for element in elements[1:])
            if self._verifies(key, first) and all(self._verifies(key, signed) for signed in rest):
                return index, None
        return None

    def _elements(self, body: Body) -> list[msgspec.Raw]:
        raw = body.raw(self.steps)
        return [] if raw is None else read_elements(raw) or []

    def _verifies(self, key: Key, signed: tuple[bytes, bytes] | None) -> bool:
        return signed is not None and self.verify(key, signed[0], signed[1:], self.encoding)

    def _signed_parts(self, element: msgspec.Raw) -> tuple[bytes, bytes] | None:
        """The signed message and the signature of an element. None if a part is missing."""
        delivery = Delivery(bytes(element))
        body = Body(delivery, lambda headers: False)
        signature = body.at(self.paths)
        message = None if signature is None else self.fill(delivery, body, None)
        return None if signature is None or message is None else (message, signature)


class EachFamily(TemplateFamily):
    """A signature over a template of each element of an array."""

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return EachCheck(signature, keys)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        parsed = json_object(unsigned.body)
        elements: Any = parsed
        for step in (signature.each or "").split("."):
            elements = elements.get(step) if isinstance(elements, dict) else None
        if not isinstance(elements, list) or not all(isinstance(element, dict) for element in elements):
            raise ValueError(f"there is no array of objects at {signature.each}")
        for element in elements:
            delivery = Delivery(msgspec.json.encode(element))
            message = Template(signature.template).fill(delivery, Body(delivery, lambda headers: False), None)
            if message is None:
                raise ValueError(f"an element lacks a part that {signature.template!r} names")
            set_at(element, signature.body or "", encoded_signature(signature, message, secret))
        return unsigned.headers, msgspec.json.encode(parsed)


FAMILY = EachFamily()
