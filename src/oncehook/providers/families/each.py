"""Every element of an array carries its own signature or token, and every one must be right.

Adyen signs eight fields of each item; Microsoft Graph repeats the secret in each. A check of the first alone would let
anything follow it.
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

MOST_ELEMENTS = 1000
"""A delivery with more elements is rejected before any of them is read: Adyen sends one, Microsoft Graph hundreds."""

FEW_BYTES = 16 * 1024
_few = msgspec.json.Decoder(list[msgspec.Raw]).decode


@cache
def _bounded_decoder() -> msgspec.json.Decoder[Any]:
    """A decoder that stops at the cap. It is built for the first large array: 1,000 fields take milliseconds."""
    fields = [(f"element_{i}", msgspec.Raw | UnsetType, UNSET) for i in range(MOST_ELEMENTS)]
    return msgspec.json.Decoder(msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True))


def read_elements(array: bytes) -> list[msgspec.Raw] | None:
    """The elements of a JSON array; None for what is no array, or one of more than MOST_ELEMENTS."""
    try:
        found = _few(array) if len(array) <= FEW_BYTES else _read_many(array)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return found if len(found) <= MOST_ELEMENTS else None


def _read_many(array: bytes) -> list[msgspec.Raw]:
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
        """Elements are read one by one, and no further than to the first that is wrong."""
        elements = self._elements(body)
        first = self._signed(elements[0]) if elements else None
        for index, key in self.keys:
            rest = (self._signed(element) for element in elements[1:])
            if self._is_right(key, first) and all(self._is_right(key, one) for one in rest):
                return index, None
        return None

    def _elements(self, body: Body) -> list[msgspec.Raw]:
        raw = body.raw(self.steps)
        return [] if raw is None else read_elements(raw) or []

    def _is_right(self, key: Key, signed: tuple[bytes, bytes] | None) -> bool:
        return signed is not None and self.verify(key, signed[0], signed[1:], self.encoding)

    def _signed(self, element: msgspec.Raw) -> tuple[bytes, bytes] | None:
        """(what is signed, signature) of an element; None if it lacks a part."""
        one = Delivery(bytes(element))
        body = Body(one, lambda headers: False)
        given = body.at(self.paths)
        message = None if given is None else self.fill(one, body, None)
        return None if given is None or message is None else (message, given)


class EachFamily(TemplateFamily):
    """A template of each element of an array."""

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
            one = Delivery(msgspec.json.encode(element))
            message = Template(signature.template).fill(one, Body(one, lambda headers: False), None)
            if message is None:
                raise ValueError(f"an element lacks a part that {signature.template!r} names")
            set_at(element, signature.body or "", encoded_signature(signature, message, secret))
        return unsigned.headers, msgspec.json.encode(parsed)


FAMILY = EachFamily()
