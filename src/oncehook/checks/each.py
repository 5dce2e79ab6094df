"""Every element of an array carries its own signature or token, and every one must be right.

Adyen signs eight fields of each item; Microsoft Graph repeats the secret in each. A check of the first alone would let
anything follow it.
"""

from collections.abc import Sequence

import msgspec

from oncehook.checks import Keys, Match
from oncehook.providers import Signature
from oncehook.receipt import Delivery
from oncehook.signatures import algorithm
from oncehook.template import Body, Template, compile_paths

_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


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
        elements = self._signed(delivery, body)
        if not elements:
            return None
        for index, key in self.keys:
            if all(self.verify(key, message, (given,), self.encoding) for message, given in elements):
                return index, None
        return None

    def _signed(self, delivery: Delivery, body: Body) -> Sequence[tuple[bytes, bytes]]:
        """(what is signed, signature) of each element; none at all if one of them lacks a part."""
        raw = body.raw(self.steps)
        if raw is None:
            return ()
        try:
            elements = _elements(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return ()
        found = []
        for element in elements:
            one = Delivery(bytes(element))
            inner = Body(one, lambda headers: False)
            given, message = inner.at(self.paths), self.fill(one, inner, None)
            if given is None or message is None:
                return ()
            found.append((message, given))
        return found
