"""What the hash of an event is made of: what its sender signed, in one spelling.

The fields of a form may come in any order and with any escapes, fields that nobody signed may stand beside those that
are signed, and nothing separates the fields from the query that is signed before them. The signature is the same for
all of them, so the hash must be the same too: else a captured delivery would be a new event as often as somebody spells
it in another way.
"""

from oncehook.model.delivery import Delivery
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.families.braintree import PAYLOAD
from oncehook.providers.template import Body


def content_of(provider: Provider, delivery: Delivery) -> bytes:
    """The signed query and fields of a form, or the body where all of its bytes are signed."""
    signature = provider.signatures[0]
    if "{form}" in signature.template:
        fields = Body(delivery, provider.sends_form).form()
        return delivery.body if fields is None else _signed_query(signature, delivery) + fields
    if signature.algorithm == "braintree":
        payload = Body(delivery, provider.sends_form).at(PAYLOAD)
        return (payload or delivery.body).removesuffix(b"\n")  # the signature is taken with and without it
    return delivery.body


def _signed_query(signature: Signature, delivery: Delivery) -> bytes:
    """What stands between the public address and the fields of a form."""
    return b"?" + delivery.query if delivery.query and signature.covers_address else b""
