"""Plaid: a token over the hash of the body, under a pinned key or one that the source's credentials ask for."""

from collections.abc import Sequence
from typing import NamedTuple

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers.certificates import Wanted
from oncehook.providers.families import Keys, Match, Surroundings
from oncehook.providers.families import plaid_form as plaid
from oncehook.providers.signatures import Key, algorithm
from oncehook.providers.template import Body


class Credentials(str):
    """client_id:secret, with which keys are asked for; the other kind of secret is a key itself."""

    __slots__ = ()


class Pinned(NamedTuple):
    """A key that was given, and its name where it has one: then it is for the tokens of that name."""

    name: str | None
    key: Key


def load_key(secret: str) -> Key:
    """Raises ValueError, without the value."""
    text = secret.strip()
    if text.startswith("{"):
        return Pinned(plaid.name_of(text), plaid.load_jwk(text))
    client, _, rest = text.partition(":")
    if client.isalnum() and rest.isalnum() and text.isascii():
        return Credentials(text)
    return Pinned(None, algorithm("ecdsa-p256-sha256").load(secret, "public"))


class PlaidCheck:
    """The token of the header covers the body and verifies under the key that it names."""

    stamped = True
    guarded = frozenset({plaid.HEADER})

    def __init__(self, keys: Keys, surroundings: Surroundings) -> None:
        self.pinned: list[tuple[int, Pinned]] = [(index, key) for index, key in keys if isinstance(key, Pinned)]
        self.credentials = [(index, key) for index, key in keys if isinstance(key, Credentials)]
        self.sandbox = surroundings.sandbox
        self.certificates = surroundings.certificates
        self.verify = algorithm("ecdsa-p256-sha256").verify

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if plaid.HEADER in delivery.repeated:
            raise Rejected("malformed", "a header of the signature came twice")
        token = self._token(delivery)
        if token is None:
            return None
        for index, key in self._keys(token):
            if self.verify(key, token.message, (token.signature.hex().encode(),), "hex"):
                return index, token.issued
        return None

    def wanted(self, delivery: Delivery, body: Body) -> Wanted | None:
        token = self._token(delivery)
        if token is None or not self.credentials:
            return None
        if any(self.certificates.get(one.name) is not None for one in self._asked(token)):
            return None
        return self._asked(token)[0]

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        token = self._token(delivery)
        return None if token is None else token.issued

    def _token(self, delivery: Delivery) -> plaid.Token | None:
        try:
            token = plaid.Token(delivery.headers.get(plaid.HEADER, b""))
        except ValueError:
            return None
        return token if token.covers(delivery.body) else None

    def _keys(self, token: plaid.Token) -> Keys:
        fetched = [(index, self.certificates.get(self._ask(token, key).name)) for index, key in self.credentials]
        pinned = [(index, one.key) for index, one in self.pinned if one.name in (None, token.key_name)]
        return [*pinned, *((index, key) for index, key in fetched if key is not None)]

    def _asked(self, token: plaid.Token) -> Sequence[Wanted]:
        return [self._ask(token, credentials) for _, credentials in self.credentials]

    def _ask(self, token: plaid.Token, credentials: str) -> Wanted:
        return plaid.wanted(token.key_name, credentials, sandbox=self.sandbox)
