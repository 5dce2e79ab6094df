"""Braintree: the payload in a form, under HMAC-SHA1 with the hash of the private key."""

import hmac

from oncehook.model.delivery import Delivery
from oncehook.providers.families import Keys, Match
from oncehook.providers.families import braintree_form as braintree
from oncehook.providers.template import Body

_SIGNATURE, PAYLOAD = (("bt_signature",),), (("bt_payload",),)


class BraintreeCheck:
    """The signature beside the source's public key is that of the payload, or of the payload and a line's end."""

    stamped = False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        pairs, payload = body.at(_SIGNATURE), body.at(PAYLOAD)
        if pairs is None or payload is None:
            return None
        for index, (public, key) in self.keys:
            given = braintree.signature_of(public, pairs)
            if given is not None and any(
                hmac.compare_digest(braintree.sign(key, message), given) for message in (payload, payload + b"\n")
            ):
                return index, None
        return None
