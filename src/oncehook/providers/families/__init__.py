"""Signature families, one module each: how a delivery is checked with a source's keys.

template.py   a signature over a template of the request (HMAC, Ed25519, ECDSA, RSA, a plain token)
address.py    the same, where the template holds the public address, which has several spellings
each.py       the same, for every element of an array by itself
graph.py      the same, with the tokens of Microsoft Graph beside it
basic.py      HTTP basic authentication
sns.py        Amazon SNS: named fields of the body, under a fetched certificate
paypal.py     PayPal: named headers and the body's CRC-32, under a fetched certificate
plaid.py      Plaid: a token over the hash of the body, under a fetched key
braintree.py  Braintree: a form's field, under a key that is derived
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from oncehook.model.delivery import Delivery
from oncehook.providers.certificates import Certificates, Wanted
from oncehook.providers.signatures import Key
from oncehook.providers.template import Body

MOST_SIGNATURES = 32
"""More signatures than this in one header are not a rotation but an attack on our CPU."""

Keys = Sequence[tuple[int, Key]]  # (index of the secret, its key)
Match = tuple[int, bytes | None]  # (index of the secret that verifies, the timestamp that it covers)


class Check(Protocol):
    """One alternative of a provider's signatures, with the source's keys for it."""

    stamped: bool  # whether the timestamp that it returns must be inside the window

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        """The secret that verifies the delivery, or None. Raises Rejected where no other check may have its say."""


class FetchingCheck(Check, Protocol):
    """A check whose key may have to be fetched."""

    def wanted(self, delivery: Delivery, body: Body) -> "Wanted | str | None":
        """What must be fetched before this delivery can be verified; nothing is, for what could never verify."""

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        """The time that the delivery claims, which is checked before anything is fetched for it."""


@dataclass(frozen=True)
class Surroundings:
    """What a source's settings say that a check may need."""

    certificates: Certificates = field(default_factory=Certificates)
    topics: Sequence[re.Pattern[str]] = ()
    public_url: str = ""
    webhook_id: str = ""
    sandbox: bool = False
    app_id: str = ""
