"""Plaid: a token (JWT) over the hash of the body, under a pinned key or one that the source's credentials ask for.

The key is asked for by the name that the token gives, and of Plaid's own host alone.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import key_pairs
from oncehook.providers.certificates import KeyRequest
from oncehook.providers.definition import Provider, Signature
from oncehook.providers.family import Check, CheckContext, Family, Keys, Match, SignedDelivery, UnsignedDelivery
from oncehook.providers.jwt import NOT_A_KEY, Token, Tokens, load_p256_key
from oncehook.providers.key_pairs import Pair
from oncehook.providers.signatures import Key, algorithm
from oncehook.providers.template import Body

HEADER = b"plaid-verification"
EXAMPLE_KEY = "example-key"


class Claims(msgspec.Struct, frozen=True):
    """What a token of Plaid says about a delivery."""

    iat: int
    request_body_sha256: str


TOKENS = Tokens("ES256", key_names=r"[A-Za-z0-9-]{1,64}", claims=Claims, longest=4096)


class Credentials(str):
    """client_id:secret, with which keys are asked for; the other kind of secret is a key itself."""

    __slots__ = ()


class Pinned(NamedTuple):
    """A key that was given, and its name where it has one: then it is for the tokens of that name."""

    name: str | None
    key: Key


class PlaidCheck:
    """The token of the header covers the body and verifies under the key that it names."""

    stamped = True
    guarded = frozenset({HEADER})

    def __init__(self, keys: Keys, context: CheckContext) -> None:
        self.pinned: list[tuple[int, Pinned]] = [(index, key) for index, key in keys if isinstance(key, Pinned)]
        self.credentials = [(index, key) for index, key in keys if isinstance(key, Credentials)]
        self.fetches = bool(self.credentials)
        self.sandbox = context.settings.sandbox
        self.certificates = context.certificates

    def matches(self, delivery: Delivery, body: Body) -> Match | None:
        if HEADER in delivery.repeated:
            raise Rejected("malformed", "a header of the signature came twice")
        token = self._token(delivery)
        if token is None:
            return None
        for index, key in self._keys(token):
            if TOKENS.is_signed_by(key, token):
                return index, _issued(token)
        return None

    def key_to_fetch(self, delivery: Delivery, body: Body) -> KeyRequest | None:
        token = self._token(delivery)
        if token is None or not self.credentials:
            return None
        if any(self.certificates.get(one.name) is not None for one in self._key_requests(token)):
            return None
        return self._key_requests(token)[0]

    def stamp(self, delivery: Delivery, body: Body) -> bytes | None:
        token = self._token(delivery)
        return None if token is None else _issued(token)

    def _token(self, delivery: Delivery) -> Token[Claims] | None:
        try:
            token = TOKENS.read(delivery.headers.get(HEADER, b""))
        except ValueError:
            return None
        digest = token.claims.request_body_sha256
        expected = hashlib.sha256(delivery.body).hexdigest()
        return token if digest.isascii() and hmac.compare_digest(expected, digest) else None

    def _keys(self, token: Token[Claims]) -> Keys:
        fetched = [
            (index, self.certificates.get(self._key_request(token, key).name)) for index, key in self.credentials
        ]
        pinned = [(index, one.key) for index, one in self.pinned if one.name in (None, token.key_name)]
        return [*pinned, *((index, key) for index, key in fetched if key is not None)]

    def _key_requests(self, token: Token[Claims]) -> Sequence[KeyRequest]:
        return [self._key_request(token, credentials) for _, credentials in self.credentials]

    def _key_request(self, token: Token[Claims], credentials: str) -> KeyRequest:
        return key_request(token.key_name, credentials, sandbox=self.sandbox)


def _issued(token: Token[Claims]) -> bytes:
    return str(token.claims.iat).encode()


# -- keys -----------------------------------------------------------------------------------------------------------


def load_jwk(content: bytes | str) -> Key:
    """A public key on P-256 out of a JWK, by itself or as Plaid answers. Raises ValueError for any other."""
    try:
        table: Any = msgspec.json.decode(content)
        table = table.get("key", table)
        if table.get("expired_at") is not None:
            raise ValueError("it is a key that has expired")
        return load_p256_key(table)
    except NOT_A_KEY:
        raise ValueError("it is not a key (JWK)") from None


def name_of(content: str) -> str | None:
    """The name that a JWK gives itself."""
    try:
        table: Any = msgspec.json.decode(content)
        name = table.get("key", table).get("kid")
    except NOT_A_KEY:
        return None
    return name if isinstance(name, str) else None


def key_request(key_name: str, credentials: str, *, sandbox: bool) -> KeyRequest:
    """How to ask Plaid for the key of a name: `credentials` are client_id:secret."""
    host = "sandbox.plaid.com" if sandbox else "production.plaid.com"
    client, _, secret = credentials.partition(":")
    content = msgspec.json.encode({"client_id": client, "secret": secret, "key_id": key_name})
    return KeyRequest(f"{host}#{key_name}", f"https://{host}/webhook_verification_key/get", content, load_jwk)


class PlaidFamily(Family):
    """Plaid. The secret is client_id:secret, or a pinned key (JWK or PEM)."""

    def load_key(self, signature: Signature, secret: str) -> Key:
        text = secret.strip()
        if text.startswith("{"):
            return Pinned(name_of(text), load_jwk(text))
        client, _, rest = text.partition(":")
        if client.isalnum() and rest.isalnum() and text.isascii():
            return Credentials(text)
        return Pinned(None, algorithm(TOKENS.algorithm).load(secret, "public"))

    def make_check(self, signature: Signature, provider: Provider, keys: Keys, context: CheckContext) -> Check:
        return PlaidCheck(keys, context)

    def sign(self, signature: Signature, unsigned: UnsignedDelivery, secret: str) -> SignedDelivery:
        digest = hashlib.sha256(unsigned.body).hexdigest()
        token = TOKENS.sign(secret, EXAMPLE_KEY, {"iat": int(unsigned.now), "request_body_sha256": digest})
        return {**unsigned.headers, "Plaid-Verification": token.decode()}, unsigned.body

    def make_pair(self, signature: Signature) -> Pair:
        return key_pairs.ecdsa()

    def shares_secret(self, signature: Signature) -> bool:
        return False

    def signature_header(self, signature: Signature) -> str:
        return "Plaid-Verification"


FAMILY = PlaidFamily()
